/* Attention over a prefix tree on a CPU, forward and backward; sums are float32, products float32 or bfloat16.

   Compiled by tree_attention.py, which holds the signatures once more, with Element float or (AVX512-BF16, and AMX where
   it is) bfloat16. Queries, outputs and their gradients are [T, heads, group, dim], keys and values [T, heads, dim];
   dim is a multiple of 32. The first `before` tokens of a forward pass may have keys and values alone. A tile is (first
   token, end, segment); the tokens of a segment see the ranges [from, to) of tokens that the segment lists, in
   ascending order, as far as they do not lie behind themselves.

   Scores are [keys, rows], a row for each of a tile's queries: with rows as lanes a softmax adds up no lanes. A chunk
   of keys is taken at a time, so that nothing grows with the context. */

#include "lanes.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 256 /* keys taken together */
#define MASKED -1e30f
#define LOG2_E 1.44269504f

#ifdef __AVX512BW__
#define COLUMNS 4 /* vectors, and ROWS: what the registers hold of a product */
#else
#define COLUMNS 2
#endif
#define ROWS 6

/* A step of a product takes PER_STEP neighbouring numbers of a row of the left side, and as many of a column. */
#ifdef BFLOAT16
typedef uint32_t Step __attribute__((aligned(2), may_alias));
#define PER_STEP 2
#else
typedef float Step;
#define PER_STEP 1
#endif

#if defined(BFLOAT16) && defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILE 16    /* rows, steps and columns of a matrix register */
#define FILLED 32  /* rows, keys and dimensions are filled up to a multiple of it */
#else
#define FILLED LANES
#endif

typedef struct {
    const int64_t *first_range, *ranges;
    int64_t tokens, heads, group, dim;
    float scale;
} Tree;

INLINE int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE Lanes load(const void *x) { return *(const Floats *)x; }
INLINE void put(void *x, Lanes value) { *(Floats *)x = value; }
INLINE Lanes choose(Indices which, Lanes a, Lanes b) { return (Lanes)((which & (Indices)a) | (~which & (Indices)b)); }

/* 2^x for x <= 0, to seven digits; 0 below 2^-126; not a number stays one. */
INLINE Lanes power_of_two(Lanes x) {
    const Indices is_small = x < -126.0f;
    const Lanes kept = choose(is_small, all(-126.0f), x);
    Lanes whole = kept + 0x1.8p23f - 0x1.8p23f; /* rounded to the nearest */
    whole += __builtin_convertvector(whole > kept, Lanes);
    const Lanes rest = kept - whole;
    Lanes p = all(1.8775767e-3f);
    p = p * rest + 8.9893397e-3f;
    p = p * rest + 5.5826318e-2f;
    p = p * rest + 2.4015361e-1f;
    p = p * rest + 6.9315308e-1f;
    p = p * rest + 9.9999994e-1f;
    const Lanes scaled = (Lanes)((Indices)p + (__builtin_convertvector(whole, Indices) << 23));
    return choose(is_small, all(0.0f), scaled);
}

/* Write a vector of each of PER_STEP rows as elements, and as the steps that they are together. */
#ifdef BFLOAT16
INLINE __m512i halves(Lanes x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)); }
INLINE void round_to(Element *out, Lanes x) {
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}
INLINE void join(const Lanes *rows, Step *steps) {
    _mm512_storeu_si512(steps, _mm512_or_si512(halves(rows[0]), _mm512_slli_epi32(halves(rows[1]), 16)));
}
#else
INLINE void round_to(Element *out, Lanes x) { put(out, x); }
INLINE void join(const Lanes *rows, Step *steps) { put(steps, rows[0]); }
#endif

/* Of a vector of sums: plus a step, the same for each lane, times a vector of steps. */
INLINE Lanes plus(Lanes sum, Step left, Lanes right) {
#ifdef BFLOAT16
    return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left), (__m512bh)right);
#else
    return sum + left * right;
#endif
}

/* c [rows, columns * LANES] (+)= a [rows, steps] times b [steps, columns * LANES]. */
INLINE void product(const int rows, const int columns, float *c, int64_t c_row, const Step *a, int64_t a_row,
                    const Step *b, int64_t b_row, int64_t steps, int add) {
    Lanes sums[ROWS][COLUMNS] = {};
    for (int64_t k = 0; k < steps; k++) {
        Lanes right[COLUMNS];
#pragma GCC unroll 4
        for (int i = 0; i < columns; i++) right[i] = load(b + k * b_row + i * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int i = 0; i < columns; i++) sums[r][i] = plus(sums[r][i], a[r * a_row + k], right[i]);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < columns; i++) {
            float *out = c + r * c_row + i * LANES;
            put(out, add ? load(out) + sums[r][i] : sums[r][i]); /* last: a long sum begun at 0 rounds less */
        }
}

#define CASE(R, C) \
    case R * 8 + C: product(R, C, c, c_row, left, a_row, right, b_row, steps, add); break;
#if COLUMNS == 4
#define CASES(R) CASE(R, 1) CASE(R, 2) CASE(R, 3) CASE(R, 4)
#else
#define CASES(R) CASE(R, 1) CASE(R, 2)
#endif

/* The same for any number of rows and columns, in parts that the registers hold. */
static void multiply_by_lanes(int64_t rows, int64_t columns, float *out, int64_t c_row, const Step *a, int64_t a_row,
                              const Step *b, int64_t b_row, int64_t steps, int add) {
    const int64_t vectors = columns / LANES;
    for (int64_t column = 0; column < vectors; column += COLUMNS)
        for (int64_t row = 0; row < rows; row += ROWS) {
            float *c = out + row * c_row + column * LANES;
            const Step *left = a + row * a_row, *right = b + column * LANES;
            switch (least(rows - row, ROWS) * 8 + least(vectors - column, COLUMNS)) {
                CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
            }
        }
}

#ifdef TILE
static int may_use_tiles;

/* Ask Linux for the matrix registers: it gives them to a process that asks (arch_prctl(2), ARCH_REQ_XCOMP_PERM). */
__attribute__((constructor)) static void ask_for_tiles(void) { may_use_tiles = !syscall(SYS_arch_prctl, 0x1023, 18); }

static void begin_tiles(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.rows[t] = TILE, shape.bytes[t] = 4 * TILE;
    if (may_use_tiles) _tile_loadconfig(&shape);
}

static void end_tiles(void) {
    if (may_use_tiles) _tile_release();
}

/* Registers 0 to 3 hold two times two tiles of sums, 4 and 5 rows, 6 and 7 columns. Rows and columns are multiples of
   two tiles, steps of one. */
static void multiply(int64_t rows, int64_t columns, float *out, int64_t c_row, const Step *a, int64_t a_row,
                     const Step *b, int64_t b_row, int64_t steps, int add) {
    if (!may_use_tiles) {
        multiply_by_lanes(rows, columns, out, c_row, a, a_row, b, b_row, steps, add);
        return;
    }
    for (int64_t row = 0; row < rows; row += 2 * TILE)
        for (int64_t column = 0; column < columns; column += 2 * TILE) {
            float *upper = out + row * c_row + column, *lower = upper + TILE * c_row;
            if (add) {
                _tile_loadd(0, upper, 4 * c_row);
                _tile_loadd(1, upper + TILE, 4 * c_row);
                _tile_loadd(2, lower, 4 * c_row);
                _tile_loadd(3, lower + TILE, 4 * c_row);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t k = 0; k < steps; k += TILE) {
                const Step *left = a + row * a_row + k, *right = b + k * b_row + column;
                _tile_loadd(4, left, 4 * a_row);
                _tile_loadd(5, left + TILE * a_row, 4 * a_row);
                _tile_loadd(6, right, 4 * b_row);
                _tile_loadd(7, right + TILE, 4 * b_row);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, upper, 4 * c_row);
            _tile_stored(1, upper + TILE, 4 * c_row);
            _tile_stored(2, lower, 4 * c_row);
            _tile_stored(3, lower + TILE, 4 * c_row);
        }
}
#else
#define multiply multiply_by_lanes
#define begin_tiles()
#define end_tiles()
#endif

/* x [rows, dim] as steps, [rows / PER_STEP, dim]. */
static void join_rows(const Element *x, Step *out, int64_t rows, int64_t dim) {
#ifdef BFLOAT16
    for (int64_t row = 0; row < rows; row += 2)
        for (int64_t d = 0; d < dim; d++)
            out[row / 2 * dim + d] = x[row * dim + d] | (uint32_t)x[(row + 1) * dim + d] << 16;
#else
    memcpy(out, x, rows * dim * sizeof *x);
#endif
}

/* out [columns, rows] = x [rows, columns], of steps or of floats; both are multiples of LANES. */
static void transpose(const void *x, void *out, int64_t rows, int64_t columns) {
    const Indices lane = EACH_LANE;
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < columns; column += LANES) {
            Lanes square[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) square[i] = load((const float *)x + (row + i) * columns + column);
#pragma GCC unroll 4
            for (int half = LANES / 2; half; half /= 2) {
                /* Of two vectors: the second's lanes follow the first's. */
                const Indices low = lane + (((lane & half) != 0) & (LANES - half));
                const Indices high = lane + half + (((lane & half) != 0) & (LANES - half));
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++)
                    if (!(i & half)) {
                        const Lanes a = square[i], b = square[i + half];
                        square[i] = __builtin_shuffle(a, b, low);
                        square[i + half] = __builtin_shuffle(a, b, high);
                    }
            }
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) put((float *)out + (column + i) * rows + row, square[i]);
        }
}

static void *room(int64_t bytes) { return aligned_alloc(64, up(bytes, 64) + 64); }

/* How far apart rows of so many tokens lie: no power of two, which would share places in the cache. */
INLINE int64_t padded(int64_t tokens) { return up(tokens + FILLED, 32) | 32; }

/* A head's keys or values x [T, heads, dim] as [padded, dim], filled up with zeros. */
static void take_head(const Tree *tree, const Element *x, Element *out) {
    const int64_t dim = tree->dim;
    for (int64_t token = 0; token < tree->tokens; token++)
        memcpy(out + token * dim, x + token * tree->heads * dim, dim * sizeof *x);
    memset(out + tree->tokens * dim, 0, (padded(tree->tokens) - tree->tokens) * dim * sizeof *x);
}

/* x [padded, dim] as [dim, padded / PER_STEP] steps; out may be x, `joined` is room for as many. */
static void join_columns(const Tree *tree, const Element *x, Element *joined, Element *out) {
    const int64_t tokens = padded(tree->tokens);
    join_rows(x, (Step *)joined, tokens, tree->dim);
    transpose(joined, out, tokens / PER_STEP, tree->dim);
}

/* What a thread needs for a tile of `rows` queries, filled up. */
typedef struct {
    float *scores, *score_grads;            /* [CHUNK, rows] */
    Element *weight_rows, *score_grad_rows; /* [CHUNK, rows] */
    Step *steps;                            /* [CHUNK / PER_STEP, rows]: of weights, backward of score gradients */
    Element *queries, *grads;               /* [rows, dim] */
    Step *query_columns, *grad_columns;     /* [dim / PER_STEP, rows] */
    Step *query_steps, *grad_steps;         /* [rows / PER_STEP, dim] */
    float *sums, *sum_rows;                 /* [dim, rows], and transposed */
    float *top, *total;                     /* [rows]: the largest score and the sum of weights */
    float *log2_sums, *inner;               /* [rows]: of these, and of products of outputs and gradients */
} Scratch;

static Scratch scratch_for(int64_t tile_rows, int64_t dim, char **memory) {
    const int64_t rows = up(tile_rows, FILLED), scores = 4 * CHUNK * rows, numbers = 4 * rows * dim;
    const int64_t each = up(4 * rows, 64);
    char *at = *memory = room(5 * scores + 8 * numbers + 4 * each);
    Scratch s;
#define TAKE(name, bytes) s.name = (void *)at, at += bytes
    TAKE(scores, scores), TAKE(score_grads, scores), TAKE(weight_rows, scores), TAKE(score_grad_rows, scores);
    TAKE(steps, scores);
    TAKE(queries, numbers), TAKE(grads, numbers), TAKE(query_columns, numbers), TAKE(grad_columns, numbers);
    TAKE(query_steps, numbers), TAKE(grad_steps, numbers), TAKE(sums, numbers), TAKE(sum_rows, numbers);
    TAKE(top, each), TAKE(total, each), TAKE(log2_sums, each), TAKE(inner, each);
    return s;
}

/* Where row r of a tile lies in a tensor [T, heads, group, dim], from the tile's first one on. */
INLINE int64_t place(const Tree *tree, int64_t r) {
    return (r / tree->group * tree->heads * tree->group + r % tree->group) * tree->dim;
}

/* Copy a tile's queries or gradients to [filled, dim], zero from `rows` on, and to columns. */
static void take_rows(const Tree *tree, const Element *x, Element *out, Step *columns, int64_t rows, int64_t filled) {
    const int64_t dim = tree->dim;
    for (int64_t r = 0; r < rows; r++) memcpy(out + r * dim, x + place(tree, r), dim * sizeof *x);
    memset(out + rows * dim, 0, (filled - rows) * dim * sizeof *x);
    transpose(out, columns, filled, dim / PER_STEP);
}

/* Hide scores [filled, rows] of the n keys from `low` on from rows whose token lies before, and the rest from all. */
static void mask(float *scores, int64_t rows, int64_t n, int64_t filled, int64_t low, int64_t first, int64_t group) {
    for (int64_t i = low > first ? 0 : least(first + 1 - low, n); i < filled; i++) {
        const int64_t hidden = i < n ? least((low + i - first) * group, rows) : rows;
        for (int64_t r = 0; r < hidden; r++) scores[i * rows + r] = MASKED;
    }
}

/* Convert a chunk's scores to steps of weights, the largest so far 1, which bfloat16 does not round; what was summed
   until now is scaled to that. */
static void softmax_chunk(const Scratch *s, int64_t rows, int64_t filled, int64_t dim, float scale) {
    for (int64_t r = 0; r < rows; r += LANES) {
        const Lanes before = load(s->top + r);
        Lanes top = before, total = {};
        for (int64_t i = 0; i < filled; i++) {
            const Lanes score = load(s->scores + i * rows + r);
            top = choose(score > top, score, top);
        }
        const Lanes less = top * scale, factor = power_of_two(before * scale - less);
        for (int64_t i = 0; i < filled; i += PER_STEP) {
            Lanes weights[PER_STEP];
            for (int j = 0; j < PER_STEP; j++) {
                weights[j] = power_of_two(load(s->scores + (i + j) * rows + r) * scale - less);
                total += weights[j];
            }
            join(weights, s->steps + i / PER_STEP * rows + r);
        }
        put(s->top + r, top);
        put(s->total + r, load(s->total + r) * factor + total);
        for (int64_t d = 0; d < dim; d++) put(s->sums + d * rows + r, load(s->sums + d * rows + r) * factor);
    }
}

/* The ranges of keys that a tile sees, in chunks: n keys from `low` on. */
#define EACH_CHUNK(tree, tile)                                                                                        \
    for (int64_t range = (tree)->first_range[(tile)[2]]; range < (tree)->first_range[(tile)[2] + 1]; range++)         \
        for (int64_t to = least((tree)->ranges[2 * range + 1], (tile)[1]), low = (tree)->ranges[2 * range], n;        \
             n = least(to - low, CHUNK), n > 0; low += CHUNK)

/* Write a tile's outputs and log2_sums [rows]; queries and out begin at its first row, keys are [padded, dim], values
   columns. */
static void attend_tile(const Tree *tree, const int64_t *tile, const Element *queries, const Element *keys,
                        const Element *values, Element *out, float *log2_sums, const Scratch *s) {
    const int64_t first = tile[0], group = tree->group, dim = tree->dim, own_rows = (tile[1] - first) * group;
    const int64_t rows = up(own_rows, FILLED), steps = padded(tree->tokens) / PER_STEP;
    const float scale = tree->scale * LOG2_E;
    take_rows(tree, queries, s->queries, s->query_columns, own_rows, rows);
    for (int64_t r = 0; r < rows; r++) s->top[r] = MASKED, s->total[r] = 0;
    memset(s->sums, 0, dim * rows * sizeof(float));
    EACH_CHUNK(tree, tile) {
        const int64_t filled = up(n, FILLED);
        multiply(filled, rows, s->scores, rows, (const Step *)(keys + low * dim), dim / PER_STEP, s->query_columns,
                 rows, dim / PER_STEP, 0);
        mask(s->scores, rows, n, filled, low, first, group);
        softmax_chunk(s, rows, filled, dim, scale);
        multiply(dim, rows, s->sums, rows, (const Step *)(values + low), steps, s->steps, rows, filled / PER_STEP, 1);
    }
    transpose(s->sums, s->sum_rows, dim, rows);
    for (int64_t r = 0; r < own_rows; r++) {
        log2_sums[r] = s->top[r] * scale + log2f(s->total[r]);
        for (int64_t d = 0; d < dim; d += LANES)
            round_to(out + place(tree, r) + d, load(s->sum_rows + r * dim + d) / s->total[r]);
    }
}

void attend(const Element *queries, const Element *keys, const Element *values, Element *out, float *log2_sums,
            const int64_t *tiles, const int64_t *first_range, const int64_t *ranges, int64_t n_tiles, int64_t heads,
            int64_t tokens, int64_t before, int64_t group, int64_t dim, int64_t tile_rows, int64_t threads,
            float scale) {
    const Tree tree = {first_range, ranges, tokens, heads, group, dim, scale};
    const int64_t filled = padded(tokens) * dim;
    Element *filled_keys = room(3 * heads * filled * sizeof(Element)), *value_columns = filled_keys + heads * filled;
    Element *joined = value_columns + heads * filled;
#pragma omp parallel num_threads(threads)
    {
        char *memory;
        const Scratch scratch = scratch_for(tile_rows, dim, &memory);
        begin_tiles();
#pragma omp for
        for (int64_t head = 0; head < heads; head++) {
            const int64_t at = head * filled;
            take_head(&tree, keys + head * dim, filled_keys + at);
            take_head(&tree, values + head * dim, value_columns + at);
            join_columns(&tree, value_columns + at, joined + at, value_columns + at);
        }
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < heads * n_tiles; item++) {
            const int64_t head = item / n_tiles, *tile = tiles + item % n_tiles * 3;
            const int64_t big = ((*tile - before) * heads + head) * group * dim, at = head * filled;
            attend_tile(&tree, tile, queries + big, filled_keys + at, value_columns + at, out + big,
                        log2_sums + (head * (tokens - before) + *tile - before) * group, &scratch);
        }
        end_tiles();
        free(memory);
    }
    free(filled_keys);
}

/* Convert a chunk's scores, and its products of values and gradients, to weights and gradients of scores. */
static void score_gradients(const Scratch *s, int64_t rows, int64_t filled, float scale) {
    for (int64_t i = 0; i < filled; i += PER_STEP)
        for (int64_t r = 0; r < rows; r += LANES) {
            Lanes score_grads[PER_STEP];
            for (int j = 0; j < PER_STEP; j++) {
                const int64_t at = (i + j) * rows + r;
                const Lanes weight = power_of_two(load(s->scores + at) * scale - load(s->log2_sums + r));
                score_grads[j] = weight * (load(s->score_grads + at) - load(s->inner + r));
                round_to(s->weight_rows + at, weight);
                round_to(s->score_grad_rows + at, score_grads[j]);
            }
            join(score_grads, s->steps + i / PER_STEP * rows + r);
        }
}

/* Write the queries' gradients of a tile, and add to those of keys and values, which are float32 [padded, dim]. */
static void attend_tile_backward(const Tree *tree, const int64_t *tile, const Element *queries, const Element *out,
                                 const Element *grads, const float *log2_sums, const Element *keys,
                                 const Element *values, const Element *key_columns, Element *grad_queries,
                                 float *grad_keys, float *grad_values, const Scratch *s) {
    const int64_t first = tile[0], group = tree->group, dim = tree->dim, own_rows = (tile[1] - first) * group;
    const int64_t rows = up(own_rows, FILLED), steps = padded(tree->tokens) / PER_STEP;
    take_rows(tree, queries, s->queries, s->query_columns, own_rows, rows);
    take_rows(tree, grads, s->grads, s->grad_columns, own_rows, rows);
    join_rows(s->queries, s->query_steps, rows, dim);
    join_rows(s->grads, s->grad_steps, rows, dim);
    for (int64_t r = 0; r < rows; r++) {
        Lanes sum = {};
        for (int64_t d = 0; d < dim && r < own_rows; d += LANES)
            sum += loaded(out + place(tree, r) + d) * loaded(s->grads + r * dim + d);
        s->inner[r] = 0;
        for (int i = 0; i < LANES; i++) s->inner[r] += sum[i];
        s->log2_sums[r] = r < own_rows ? log2_sums[r] : 0;
    }
    memset(s->sums, 0, dim * rows * sizeof(float));
    EACH_CHUNK(tree, tile) {
        const int64_t filled = up(n, FILLED);
        multiply(filled, rows, s->scores, rows, (const Step *)(keys + low * dim), dim / PER_STEP, s->query_columns,
                 rows, dim / PER_STEP, 0);
        multiply(filled, rows, s->score_grads, rows, (const Step *)(values + low * dim), dim / PER_STEP,
                 s->grad_columns, rows, dim / PER_STEP, 0);
        mask(s->scores, rows, n, filled, low, first, group);
        score_gradients(s, rows, filled, tree->scale * LOG2_E);
        multiply(dim, rows, s->sums, rows, (const Step *)(key_columns + low), steps, s->steps, rows, filled / PER_STEP,
                 1);
        multiply(filled, dim, grad_keys + low * dim, dim, (const Step *)s->score_grad_rows, rows / PER_STEP,
                 s->query_steps, dim, rows / PER_STEP, 1);
        multiply(filled, dim, grad_values + low * dim, dim, (const Step *)s->weight_rows, rows / PER_STEP,
                 s->grad_steps, dim, rows / PER_STEP, 1);
    }
    transpose(s->sums, s->sum_rows, dim, rows);
    for (int64_t r = 0; r < own_rows; r++)
        for (int64_t d = 0; d < dim; d += LANES)
            round_to(grad_queries + place(tree, r) + d, load(s->sum_rows + r * dim + d) * tree->scale);
}

void attend_backward(const Element *queries, const Element *keys, const Element *values, const Element *out,
                     const Element *grads, const float *log2_sums, Element *grad_queries, Element *grad_keys,
                     Element *grad_values, const int64_t *tiles, const int64_t *first_range, const int64_t *ranges,
                     int64_t n_tiles, int64_t heads, int64_t tokens, int64_t group, int64_t dim, int64_t tile_rows,
                     int64_t threads, float scale) {
    const Tree tree = {first_range, ranges, tokens, heads, group, dim, scale};
    const int64_t filled = padded(tokens) * dim;
    Element *filled_keys = room(4 * heads * filled * sizeof(Element)), *filled_values = filled_keys + heads * filled;
    Element *key_columns = filled_values + heads * filled, *joined = key_columns + heads * filled;
    float *key_sums[threads], *value_sums[threads]; /* each thread adds up its own */
    int64_t n_threads = 1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
        char *memory;
        const Scratch scratch = scratch_for(tile_rows, dim, &memory);
        begin_tiles();
#pragma omp single
        n_threads = omp_get_num_threads();
#pragma omp for
        for (int64_t head = 0; head < heads; head++) {
            const int64_t at = head * filled;
            take_head(&tree, keys + head * dim, filled_keys + at);
            take_head(&tree, values + head * dim, filled_values + at);
            join_columns(&tree, filled_keys + at, joined + at, key_columns + at);
        }
        key_sums[me] = memset(room(heads * filled * sizeof(float)), 0, heads * filled * sizeof(float));
        value_sums[me] = memset(room(heads * filled * sizeof(float)), 0, heads * filled * sizeof(float));
        /* Tiles go to threads by number, so that sums are the same to the last bit every time. */
#pragma omp for schedule(static, 1)
        for (int64_t item = 0; item < heads * n_tiles; item++) {
            const int64_t head = item / n_tiles, *tile = tiles + item % n_tiles * 3;
            const int64_t big = (*tile * heads + head) * group * dim, at = head * filled;
            attend_tile_backward(&tree, tile, queries + big, out + big, grads + big,
                                 log2_sums + (head * tokens + *tile) * group, filled_keys + at, filled_values + at,
                                 key_columns + at, grad_queries + big, key_sums[me] + at, value_sums[me] + at,
                                 &scratch);
        }
        end_tiles();
        free(memory);
#pragma omp for
        for (int64_t row = 0; row < tokens * heads; row++)
            for (int64_t d = 0; d < dim; d += LANES) {
                const int64_t from = row % heads * filled + row / heads * dim + d;
                Lanes key = {}, value = {};
                for (int64_t thread = 0; thread < n_threads; thread++)
                    key += load(key_sums[thread] + from), value += load(value_sums[thread] + from);
                round_to(grad_keys + row * dim + d, key * scale);
                round_to(grad_values + row * dim + d, value);
            }
        free(key_sums[me]), free(value_sums[me]);
    }
    free(filled_keys);
}
