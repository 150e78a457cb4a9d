/* Attention over a prefix tree on a CPU, forward and backward, in bfloat16 products and float32 sums (AVX512-BF16).

   Compiled by _tree_kernels.py, which holds the signatures once more. For each of `heads` key heads: queries [T, group,
   dim], keys and values [T, dim]. A tile is (first token, end, segment); the tokens of a segment see the ranges [from,
   to) of tokens that the segment lists, in ascending order, as far as they do not lie behind themselves. dim is a
   multiple of 64. Keys are read in place, sixteen at a time: what lies beside a range is masked. */

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define ROWS 6     /* and COLUMNS * LANES: what the registers hold of a product */
#define COLUMNS 4
#define CHUNK 256  /* keys that the backward pass takes together, and at most that many steps of a product */
#define MASKED -1e30f
#define LOG2_E 1.44269504f

typedef uint16_t Half;
typedef uint32_t Pair; /* of neighbouring bfloat16 numbers */

typedef struct {
    const int64_t *first_range, *ranges;
    int64_t group, dim, width;
    float scale;
} Tree;

INLINE int64_t up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* c [rows, columns * LANES] (+)= a [rows, steps] times b [steps, columns * LANES], in pairs along the steps. */
INLINE void product(const int rows, const int columns, float *c, int64_t c_row, const Pair *a, int64_t a_row,
                    int64_t a_step, const Pair *b, int64_t b_step, int64_t b_column, int64_t steps, int add) {
    __m512 sums[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < columns; i++)
            sums[r][i] = add ? _mm512_loadu_ps(c + r * c_row + i * LANES) : _mm512_setzero_ps();
    for (int64_t k = 0; k < steps; k++) {
        __m512bh right[COLUMNS];
#pragma GCC unroll 4
        for (int i = 0; i < columns; i++) right[i] = (__m512bh)_mm512_loadu_si512(b + k * b_step + i * b_column);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512bh left = (__m512bh)_mm512_set1_epi32(a[r * a_row + k * a_step]);
#pragma GCC unroll 4
            for (int i = 0; i < columns; i++) sums[r][i] = _mm512_dpbf16_ps(sums[r][i], left, right[i]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < columns; i++) _mm512_storeu_ps(c + r * c_row + i * LANES, sums[r][i]);
}

#define CASE(R, C) \
    case R * 8 + C: product(R, C, c, c_row, a, a_row, a_step, b, b_step, b_column, steps, add); break;
#define CASES(R) CASE(R, 1) CASE(R, 2) CASE(R, 3) CASE(R, 4)

/* The same for any number of rows and columns, in parts that the registers hold. */
static void multiply(int64_t rows, int64_t columns, float *out, int64_t c_row, const Pair *left, int64_t a_row,
                     int64_t a_step, const Pair *right, int64_t b_step, int64_t b_column, int64_t steps, int add) {
    for (int64_t column = 0; column < columns; column += COLUMNS)
        for (int64_t row = 0; row < rows; row += ROWS) {
            float *c = out + row * c_row + column * LANES;
            const Pair *a = left + row * a_row, *b = right + column * b_column;
            switch (least(rows - row, ROWS) * 8 + least(columns - column, COLUMNS)) {
                CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
            }
        }
}

/* 2^x for x <= 0, to seven digits; not a number stays one, since the maximum is then its second argument. */
INLINE __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
    const __m512 whole = _mm512_floor_ps(x);
    const __m512 rest = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.8775767e-3f);
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(8.9893397e-3f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(5.5826318e-2f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(2.4015361e-1f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(6.9315308e-1f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(9.9999994e-1f));
    return _mm512_scalef_ps(p, whole);
}

INLINE __m256i halves(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
INLINE __m512 widened(const Half *x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16);
}
INLINE __m512i interleaved(__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* x [rows, dim] as pairs of dimensions, [rows / LANES, dim / 2, LANES]; rows are filled up with zeros. */
static void pack_dimensions(const Half *x, Pair *out, int64_t rows, int64_t dim) {
    for (int64_t row = 0; row < up(rows); row++)
        for (int64_t d = 0; d < dim / 2; d++) {
            Pair pair = 0;
            if (row < rows) memcpy(&pair, x + row * dim + 2 * d, sizeof pair);
            out[(row / LANES * (dim / 2) + d) * LANES + row % LANES] = pair;
        }
}

/* x [rows, dim] as pairs of rows, [filled / 2, dim]; rows are filled up with zeros. */
static void pack_rows(const Half *x, Pair *out, int64_t rows, int64_t filled, int64_t dim) {
    for (int64_t row = 0; row < filled; row += 2)
        for (int64_t d = 0; d < dim; d++) {
            const Pair low = row < rows ? x[row * dim + d] : 0, high = row + 1 < rows ? x[(row + 1) * dim + d] : 0;
            out[row / 2 * dim + d] = low | high << 16;
        }
}

/* Scores [rows, n] of the keys from `low` on: those outside of [from, to), or behind the row's token, are masked. */
static void mask(float *scores, int64_t width, int64_t rows, int64_t n, int64_t low, int64_t from, int64_t to,
                 int64_t first_token, int64_t group) {
    for (int64_t r = 0; r < rows; r++) {
        const int64_t end = least(to, first_token + r / group + 1);
        for (int64_t i = 0; i < from - low && i < n; i++) scores[r * width + i] = MASKED;
        for (int64_t i = end > low ? end - low : 0; i < n; i++) scores[r * width + i] = MASKED;
    }
}

/* Scores [n] to weights, the largest 1, times scale; returns their sum and its logarithm to the base 2. */
INLINE float weigh(const float *scores, Half *weights, int64_t n, float scale, float *log2_sum) {
    __m512 top = _mm512_set1_ps(MASKED), sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(scores + i));
    const float largest = _mm512_reduce_max_ps(top) * scale * LOG2_E;
    const __m512 by = _mm512_set1_ps(scale * LOG2_E), less = _mm512_set1_ps(largest);
    for (int64_t i = 0; i < n; i += LANES) {
        const __m512 weight = power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(scores + i), by, less));
        sum = _mm512_add_ps(sum, weight);
        _mm256_storeu_si256((__m256i *)(weights + i), halves(weight));
    }
    const float total = _mm512_reduce_add_ps(sum);
    *log2_sum = largest + log2f(total);
    return total;
}

/* out [heads, T, group, dim] and log2_sums [heads, T, group]; columns of a row's scores are at most `width`. */
static void attend_tile(const Tree *tree, const int64_t *tile, const Half *queries, const Pair *keys,
                        const Pair *values, Half *out, float *log2_sums, float *scores, Half *weights, float *mixed) {
    const int64_t first = tile[0], end = tile[1], group = tree->group, dim = tree->dim, width = tree->width;
    const int64_t rows = (end - first) * group;
    const int64_t begin_range = tree->first_range[tile[2]], end_range = tree->first_range[tile[2] + 1];
    int64_t column = 0;
    for (int64_t range = begin_range; range < end_range; range++) {
        const int64_t from = tree->ranges[2 * range], to = least(tree->ranges[2 * range + 1], end);
        const int64_t low = from / LANES * LANES, n = to > from ? up(to) - low : 0;
        multiply(rows, n / LANES, scores + column, width, (const Pair *)(queries + first * group * dim), dim / 2, 1,
                 keys + low * dim / 2, LANES, dim / 2 * LANES, dim / 2, 0);
        mask(scores + column, width, rows, n, low, from, to, first, group);
        column += n;
    }
    float sums[rows];
    for (int64_t r = 0; r < rows; r++)
        sums[r] = weigh(scores + r * width, weights + r * width, column, tree->scale, log2_sums + first * group + r);
    memset(mixed, 0, rows * dim * sizeof *mixed);
    column = 0;
    for (int64_t range = begin_range; range < end_range; range++) {
        const int64_t from = tree->ranges[2 * range], to = least(tree->ranges[2 * range + 1], end);
        const int64_t low = from / LANES * LANES, n = to > from ? up(to) - low : 0;
        for (int64_t k = 0; k < n; k += CHUNK / 2)
            multiply(rows, dim / LANES, mixed, dim, (const Pair *)(weights + column + k), width / 2, 1,
                     values + (low + k) / 2 * dim, dim, LANES, least(CHUNK / 2, n - k) / 2, 1);
        column += n;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += LANES)
            _mm256_storeu_si256(
                (__m256i *)(out + (first * group + r) * dim + d),
                halves(_mm512_mul_ps(_mm512_loadu_ps(mixed + r * dim + d), _mm512_set1_ps(1.0f / sums[r]))));
}

static void *room(int64_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64 + 64); }

void attend(const Half *queries, const Half *keys, const Half *values, Half *out, float *log2_sums,
            const int64_t *tiles, const int64_t *first_range, const int64_t *ranges, int64_t n_tiles, int64_t heads,
            int64_t tokens, int64_t group, int64_t dim, int64_t tile_rows, int64_t width, int64_t threads,
            float scale) {
    const Tree tree = {first_range, ranges, group, dim, width, scale};
    const int64_t packed = up(tokens) * dim / 2, own = tokens * dim;
    Pair *packed_keys = room(heads * packed * sizeof(Pair)), *packed_values = room(heads * packed * sizeof(Pair));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t head = 0; head < heads; head++) {
            pack_dimensions(keys + head * own, packed_keys + head * packed, tokens, dim);
            pack_rows(values + head * own, packed_values + head * packed, tokens, up(tokens), dim);
        }
        float *scores = room(tile_rows * width * sizeof(float)), *mixed = room(tile_rows * dim * sizeof(float));
        Half *weights = room(tile_rows * width * sizeof(Half));
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < heads * n_tiles; item++) {
            const int64_t head = item / n_tiles;
            attend_tile(&tree, tiles + item % n_tiles * 3, queries + head * own * group, packed_keys + head * packed,
                        packed_values + head * packed, out + head * own * group, log2_sums + head * tokens * group,
                        scores, weights, mixed);
        }
        free(scores), free(mixed), free(weights);
    }
    free(packed_keys), free(packed_values);
}

typedef struct {
    float *scores, *slopes, *grad_queries;  /* [rows, CHUNK] twice, [rows, dim] */
    Half *slope_rows;                       /* [rows, CHUNK] */
    Pair *weight_pairs, *slope_pairs;       /* [rows / 2, CHUNK] */
    Pair *query_pairs, *grad_pairs;         /* [rows / 2, dim] */
} Scratch;

/* Of the rows' scores and of the products of values and gradients: weights and slopes, by rows and by pairs of rows. */
static void slope(const Scratch *s, int64_t rows, int64_t n, const float *log2_sums, const float *inner, float scale) {
    const __m512 by = _mm512_set1_ps(scale * LOG2_E);
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t i = 0; i < n; i += LANES) {
            __m256i weight_halves[2], slope_halves[2];
            for (int j = 0; j < 2; j++) {
                weight_halves[j] = slope_halves[j] = _mm256_setzero_si256();
                if (r + j >= rows) break;
                const int64_t at = (r + j) * CHUNK + i;
                const __m512 weight = power_of_two(
                    _mm512_fmsub_ps(_mm512_loadu_ps(s->scores + at), by, _mm512_set1_ps(log2_sums[r + j])));
                const __m512 less = _mm512_sub_ps(_mm512_loadu_ps(s->slopes + at), _mm512_set1_ps(inner[r + j]));
                weight_halves[j] = halves(weight);
                slope_halves[j] = halves(_mm512_mul_ps(weight, less));
                _mm256_storeu_si256((__m256i *)(s->slope_rows + at), slope_halves[j]);
            }
            const int64_t at = r / 2 * CHUNK + i;
            _mm512_storeu_si512(s->weight_pairs + at, interleaved(weight_halves[0], weight_halves[1]));
            _mm512_storeu_si512(s->slope_pairs + at, interleaved(slope_halves[0], slope_halves[1]));
        }
}

/* Writes the queries' gradients of one tile, and adds to those of keys and values, which are float32 [T, dim]. */
static void attend_tile_backward(const Tree *tree, const int64_t *tile, const Half *queries, const Half *out,
                                 const Half *grads, const float *log2_sums, const Pair *keys, const Pair *key_rows,
                                 const Pair *values, Half *grad_queries, float *grad_keys, float *grad_values,
                                 const Scratch *s) {
    const int64_t first = tile[0], end = tile[1], group = tree->group, dim = tree->dim;
    const int64_t rows = (end - first) * group, at = first * group, pairs = (rows + 1) / 2;
    float inner[rows];
    for (int64_t r = 0; r < rows; r++) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t d = 0; d < dim; d += LANES)
            sum = _mm512_fmadd_ps(widened(out + (at + r) * dim + d), widened(grads + (at + r) * dim + d), sum);
        inner[r] = _mm512_reduce_add_ps(sum);
    }
    pack_rows(queries + at * dim, s->query_pairs, rows, 2 * pairs, dim);
    pack_rows(grads + at * dim, s->grad_pairs, rows, 2 * pairs, dim);
    memset(s->grad_queries, 0, rows * dim * sizeof(float));
    for (int64_t range = tree->first_range[tile[2]]; range < tree->first_range[tile[2] + 1]; range++) {
        const int64_t from = tree->ranges[2 * range], to = least(tree->ranges[2 * range + 1], end);
        for (int64_t low = from / LANES * LANES; low < to; low += CHUNK) {
            const int64_t n = least(up(to) - low, CHUNK);
            multiply(rows, n / LANES, s->scores, CHUNK, (const Pair *)(queries + at * dim), dim / 2, 1,
                     keys + low * dim / 2, LANES, dim / 2 * LANES, dim / 2, 0);
            multiply(rows, n / LANES, s->slopes, CHUNK, (const Pair *)(grads + at * dim), dim / 2, 1,
                     values + low * dim / 2, LANES, dim / 2 * LANES, dim / 2, 0);
            mask(s->scores, CHUNK, rows, n, low, from, to, first, group);
            slope(s, rows, n, log2_sums + at, inner, tree->scale);
            multiply(rows, dim / LANES, s->grad_queries, dim, (const Pair *)s->slope_rows, CHUNK / 2, 1,
                     key_rows + low / 2 * dim, dim, LANES, n / 2, 1);
            multiply(n, dim / LANES, grad_keys + low * dim, dim, s->slope_pairs, 1, CHUNK, s->query_pairs, dim, LANES,
                     pairs, 1);
            multiply(n, dim / LANES, grad_values + low * dim, dim, s->weight_pairs, 1, CHUNK, s->grad_pairs, dim,
                     LANES, pairs, 1);
        }
    }
    for (int64_t i = 0; i < rows * dim; i += LANES)
        _mm256_storeu_si256(
            (__m256i *)(grad_queries + at * dim + i),
            halves(_mm512_mul_ps(_mm512_loadu_ps(s->grad_queries + i), _mm512_set1_ps(tree->scale))));
}

void attend_backward(const Half *queries, const Half *keys, const Half *values, const Half *out, const Half *grads,
                     const float *log2_sums, Half *grad_queries, Half *grad_keys, Half *grad_values,
                     const int64_t *tiles, const int64_t *first_range, const int64_t *ranges, int64_t n_tiles,
                     int64_t heads, int64_t tokens, int64_t group, int64_t dim, int64_t tile_rows, int64_t threads,
                     float scale) {
    const Tree tree = {first_range, ranges, group, dim, 0, scale};
    const int64_t packed = up(tokens) * dim / 2, own = tokens * dim, sums = heads * up(tokens) * dim;
    Pair *pack = room(3 * heads * packed * sizeof(Pair));
    Pair *packed_keys = pack, *key_rows = pack + heads * packed, *packed_values = pack + 2 * heads * packed;
    float *key_sums[threads], *value_sums[threads]; /* each thread adds up its own */
    int64_t n_threads = 1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
#pragma omp single
        n_threads = omp_get_num_threads();
#pragma omp for
        for (int64_t head = 0; head < heads; head++) {
            pack_dimensions(keys + head * own, packed_keys + head * packed, tokens, dim);
            pack_rows(keys + head * own, key_rows + head * packed, tokens, up(tokens), dim);
            pack_dimensions(values + head * own, packed_values + head * packed, tokens, dim);
        }
        key_sums[me] = memset(room(sums * sizeof(float)), 0, sums * sizeof(float));
        value_sums[me] = memset(room(sums * sizeof(float)), 0, sums * sizeof(float));
        const int64_t rows = tile_rows + tile_rows % 2;
        const Scratch scratch = {
            room(rows * CHUNK * 4), room(rows * CHUNK * 4), room(rows * dim * 4), room(rows * CHUNK * 2),
            room(rows * CHUNK * 2), room(rows * CHUNK * 2), room(rows * dim * 2), room(rows * dim * 2)};
        /* Tiles go to threads by number, so that sums are the same to the last bit every time. */
#pragma omp for schedule(static, 1)
        for (int64_t item = 0; item < heads * n_tiles; item++) {
            const int64_t head = item / n_tiles, big = head * own * group;
            attend_tile_backward(&tree, tiles + item % n_tiles * 3, queries + big, out + big, grads + big,
                                 log2_sums + head * tokens * group, packed_keys + head * packed,
                                 key_rows + head * packed, packed_values + head * packed, grad_queries + big,
                                 key_sums[me] + head * up(tokens) * dim, value_sums[me] + head * up(tokens) * dim,
                                 &scratch);
        }
        free(scratch.scores), free(scratch.slopes), free(scratch.grad_queries), free(scratch.slope_rows);
        free(scratch.weight_pairs), free(scratch.slope_pairs), free(scratch.query_pairs), free(scratch.grad_pairs);
#pragma omp for
        for (int64_t token = 0; token < heads * tokens; token++)
            for (int64_t d = 0; d < dim; d += LANES) {
                const int64_t from = (token / tokens * up(tokens) + token % tokens) * dim + d;
                __m512 key = _mm512_setzero_ps(), value = key;
                for (int64_t thread = 0; thread < n_threads; thread++) {
                    key = _mm512_add_ps(key, _mm512_loadu_ps(key_sums[thread] + from));
                    value = _mm512_add_ps(value, _mm512_loadu_ps(value_sums[thread] + from));
                }
                _mm256_storeu_si256((__m256i *)(grad_keys + token * dim + d),
                                    halves(_mm512_mul_ps(key, _mm512_set1_ps(scale))));
                _mm256_storeu_si256((__m256i *)(grad_values + token * dim + d), halves(value));
            }
        free(key_sums[me]), free(value_sums[me]);
    }
    free(pack);
}
