/* Linear layers in bfloat16 on a CPU that multiplies it (AVX512-BF16 or AMX): y = x W^T for few rows and for many.

   Compiled by _products.py. A weight lies in panels of COLUMNS outputs, [panel][pair of inputs][output][2], which are
   read from beginning to end. Each output is one sum in float32, of one thread, in an order that only the number of
   inputs decides, and is rounded once: no row's numbers depend on those beside it. What a policy's adapter adds is in
   that sum; its product with the first factor is rounded too.

   A weight may be in 8 bits, with a scale for each output and GROUP inputs, in the layout of AVX512-VNNI; rows are then
   brought to 8 bits as well, and a group's products are exact. What adapters add stays in bfloat16. */

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
#define COLUMNS 32 /* of a panel: two vectors of 16 */
#define ROWS 12    /* together: their sums fill 24 of 32 registers */
#define ROWS_INT8 8 /* together where they are in 8 bits: their products fill 16 */
#define CHUNK 192  /* rows that a thread multiplies with one panel */
#define FEW_ROWS 64
#define GROUP 32 /* inputs that share a scale where they are in 8 bits */

typedef uint16_t Element;
typedef int32_t Pair __attribute__((may_alias, aligned(2)));

/* GROUP inputs of a panel in 8 bits, 128 above their value; an instruction reads four of each output. */
typedef struct {
    Element scales[COLUMNS];
    uint8_t weights[GROUP / 4][COLUMNS][4];
} Group;

/* GROUP inputs of a row in 8 bits, and the product of all of them with -128. */
typedef struct {
    float scale;
    int32_t shift;
    int8_t numbers[GROUP];
} RowGroup;
_Static_assert(sizeof(Group) == COLUMNS * (2 + GROUP) && sizeof(RowGroup) == 8 + GROUP, "_products.py has the sizes");

/* Lay out `rows` rows of w [rows, pairs]; what is missing of the last panel is zero. */
void pack(const Pair *w, Pair *out, int64_t rows, int64_t pairs, int64_t threads) {
    const int64_t panels = (rows + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t pair = 0; pair < pairs; pair++)
            for (int64_t c = 0; c < COLUMNS; c++) {
                const int64_t row = panel * COLUMNS + c;
                out[(panel * pairs + pair) * COLUMNS + c] = row < rows ? w[row * pairs + pair] : 0;
            }
}

/* 16 numbers in float32. */
INLINE __m512 widened16(const Element *x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)), 16));
}

/* 2^n p(r) with x = n log(2) + r, by the coefficients of Cephes' expf. */
INLINE __m512 exp_of(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1)));
    return _mm512_scalef_ps(p, n);
}

INLINE __m512 silu(__m512 x) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), e));
}

INLINE __mmask16 first(int64_t columns) {
    return columns >= 16 ? 0xffff : columns <= 0 ? 0 : (1 << columns) - 1;
}

/* A vector with the first `columns` of `other` added where there is one. */
INLINE __m512 plus(__m512 sum, const Element *other, int64_t columns) {
    if (!other) return sum;
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(columns), other));
    return _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)));
}

/* Round the first `columns` of a vector. */
INLINE void store(__m512 sum, Element *y, int64_t columns) {
    _mm256_mask_storeu_epi16(y, first(columns), (__m256i)_mm512_cvtneps_pbh(sum));
}

/* The scale that brings GROUP numbers to -127 .. 127; NaN where one of them is NaN or infinite. */
INLINE float scale_of(const __m512 *x) {
    __m512 top = _mm512_setzero_ps();
    __mmask16 unsound = 0;
    for (int v = 0; v < GROUP / 16; v++) {
        top = _mm512_max_ps(top, _mm512_abs_ps(x[v]));
        unsound |= _mm512_cmp_ps_mask(_mm512_sub_ps(x[v], x[v]), _mm512_setzero_ps(), _CMP_UNORD_Q);
    }
    return unsound ? NAN : _mm512_reduce_max_ps(top) / 127;
}

/* Round numbers to multiples of a scale; the sum of the multiples is returned. */
INLINE int32_t quantize(const __m512 *x, float scale, int8_t *out) {
    const __m512 inverse = _mm512_set1_ps(scale >= FLT_MIN ? 1 / scale : 0);
    const __m512i most = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127);
    __m512i sum = _mm512_setzero_si512();
    for (int v = 0; v < GROUP / 16; v++) {
        __m512i quantized = _mm512_cvtps_epi32(_mm512_mul_ps(x[v], inverse));
        quantized = _mm512_max_epi32(_mm512_min_epi32(quantized, most), least);
        sum = _mm512_add_epi32(sum, quantized);
        _mm_storeu_si128((__m128i *)(out + 16 * v), _mm512_cvtepi32_epi8(quantized));
    }
    return _mm512_reduce_add_epi32(sum);
}

INLINE void load_group(const Element *x, __m512 *numbers) {
    for (int v = 0; v < GROUP / 16; v++) numbers[v] = widened16(x + 16 * v);
}

/* Lay out w [rows, inputs] in 8 bits; inputs are a multiple of GROUP. */
void pack_int8(const Element *w, Group *out, int64_t rows, int64_t inputs, int64_t threads) {
    const int64_t panels = (rows + COLUMNS - 1) / COLUMNS, groups = inputs / GROUP;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t g = 0; g < groups; g++) {
            Group *group = out + panel * groups + g;
            for (int64_t c = 0; c < COLUMNS; c++) {
                const int64_t row = panel * COLUMNS + c;
                __m512 numbers[GROUP / 16] = {0};
                int8_t quantized[GROUP];
                if (row < rows) load_group(w + row * inputs + g * GROUP, numbers);
                store(_mm512_set1_ps(scale_of(numbers)), group->scales + c, 1);
                quantize(numbers, _mm512_cvtss_f32(plus(_mm512_setzero_ps(), group->scales + c, 1)), quantized);
                for (int i = 0; i < GROUP; i++) group->weights[i / 4][c][i % 4] = quantized[i] + 128;
            }
        }
}

/* Bring x [rows, groups, GROUP] to 8 bits; each thread of the team does its part. */
INLINE void quantize_rows(const Element *x, RowGroup *out, int64_t rows, int64_t groups) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * groups; i++) {
        __m512 numbers[GROUP / 16];
        load_group(x + i * GROUP, numbers);
        out[i].scale = scale_of(numbers);
        out[i].shift = -128 * quantize(numbers, out[i].scale, out[i].numbers);
    }
}

/* Write a row of a panel's sums; y has `columns` more columns. A gated panel has 16 outputs before the activation and
   the 16 that they are multiplied with. */
INLINE void finish(__m512 low, __m512 high, const float *bias, const Element *other, Element *y, int64_t columns,
                   const int gated) {
    if (bias) low = _mm512_add_ps(low, _mm512_loadu_ps(bias)), high = _mm512_add_ps(high, _mm512_loadu_ps(bias + 16));
    if (gated) {
        store(_mm512_mul_ps(silu(low), high), y, columns);
    } else {
        store(plus(low, other, columns), y, columns);
        store(plus(high, other ? other + 16 : 0, columns - 16), y + 16, columns - 16);
    }
}

/* Rows x [m, inputs] times a panel, which is one of 8 bits where `quantized` [m, groups] are given. */
typedef struct {
    const Element *x;
    const void *panel;
    int64_t inputs;
    const RowGroup *quantized;
} Term;

INLINE void multiply(Term term, __m512 sums[][2], const int m) {
    const Element *panel = term.panel;
    for (int64_t i = 0; i < term.inputs; i += 2) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(panel + i * COLUMNS);
        const __m512bh high = (__m512bh)_mm512_loadu_si512(panel + i * COLUMNS + COLUMNS);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const Pair *)(term.x + j * term.inputs + i));
            sums[j][0] = _mm512_dpbf16_ps(sums[j][0], pair, low);
            sums[j][1] = _mm512_dpbf16_ps(sums[j][1], pair, high);
        }
    }
}

INLINE void multiply_int8(Term term, __m512 sums[][2], const int m) {
    const RowGroup *x = term.quantized;
    const Group *panel = term.panel;
    const int64_t groups = term.inputs / GROUP;
    for (int64_t g = 0; g < groups; g++) {
        __m512i products[ROWS_INT8][2];
#pragma GCC unroll 8
        for (int j = 0; j < m; j++) products[j][0] = products[j][1] = _mm512_set1_epi32(x[j * groups + g].shift);
        for (int i = 0; i < GROUP / 4; i++) {
            const __m512i low = _mm512_loadu_si512(panel[g].weights[i][0]);
            const __m512i high = _mm512_loadu_si512(panel[g].weights[i][COLUMNS / 2]);
#pragma GCC unroll 12
            for (int j = 0; j < m; j++) {
                const __m512i four = _mm512_set1_epi32(*(const Pair *)(x[j * groups + g].numbers + 4 * i));
                products[j][0] = _mm512_dpbusd_epi32(products[j][0], low, four);
                products[j][1] = _mm512_dpbusd_epi32(products[j][1], high, four);
            }
        }
        const __m512 low = widened16(panel[g].scales), high = widened16(panel[g].scales + COLUMNS / 2);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const __m512 scale = _mm512_set1_ps(x[j * groups + g].scale);
            sums[j][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[j][0]), _mm512_mul_ps(low, scale), sums[j][0]);
            sums[j][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[j][1]), _mm512_mul_ps(high, scale), sums[j][1]);
        }
    }
}

/* m rows of a layer and of what adapters add to it, in one sum; y and other have `width` columns, of which this
   panel's first `columns` count. */
INLINE void tile(Term layer, const Term *adapters, int64_t n, const float *bias, const Element *other, Element *y,
                 const int m, int64_t width, int64_t columns, const int gated) {
    __m512 sums[ROWS][2];
#pragma GCC unroll 12
    for (int j = 0; j < m; j++) sums[j][0] = sums[j][1] = _mm512_setzero_ps();
    if (layer.quantized && m <= ROWS_INT8)
        multiply_int8(layer, sums, m);
    else
        multiply(layer, sums, m);
    for (int64_t k = 0; k < n; k++) multiply(adapters[k], sums, m);
#pragma GCC unroll 12
    for (int j = 0; j < m; j++)
        finish(sums[j][0], sums[j][1], bias, other ? other + j * width : 0, y + j * width, columns, gated);
}

/* Numbers of rows that the compiler knows, so that the sums stay in registers. */
#define CASE(m) case m: tile(layer, adapters, n, bias, other, y, m, width, columns, gated); break
INLINE void tile_by_number(Term layer, const Term *adapters, int64_t n, const float *bias, const Element *other,
                           Element *y, int64_t m, int64_t width, int64_t columns, const int gated) {
    switch (m) { CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6); CASE(7); CASE(8); CASE(9); CASE(10); CASE(11);
    default: tile(layer, adapters, n, bias, other, y, ROWS, width, columns, gated); }
}

#ifdef __AMX_BF16__
#define TILE 16        /* rows of a matrix register, and float32 columns */
#define TILE_INPUTS 32 /* that one instruction multiplies */

static int may_use_tiles;

/* Ask Linux for the matrix registers: it gives them to a process that asks (arch_prctl(2), ARCH_REQ_XCOMP_PERM). */
__attribute__((constructor)) static void ask_for_tiles(void) { may_use_tiles = !syscall(SYS_arch_prctl, 0x1023, 18); }

/* Registers 0 to 3 hold the sums of m rows, 4 and 5 these rows, 6 and 7 a panel. */
INLINE void shape_tiles(int64_t m) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    const int64_t upper = m < TILE ? m : TILE, lower = m - upper;
    const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, TILE, TILE};
    for (int t = 0; t < 8; t++) shape.rows[t] = rows[t], shape.bytes[t] = rows[t] ? 64 : 0;
    _tile_loadconfig(&shape);
}

INLINE void multiply_tiles(Term term, int64_t m) {
    const Element *panel = term.panel;
    for (int64_t i = 0; i < term.inputs; i += TILE_INPUTS) {
        _tile_loadd(6, panel + i * COLUMNS, 4 * COLUMNS);
        _tile_loadd(7, panel + i * COLUMNS + COLUMNS, 4 * COLUMNS);
        _tile_loadd(4, term.x + i, 2 * term.inputs);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (m > TILE) {
            _tile_loadd(5, term.x + TILE * term.inputs + i, 2 * term.inputs);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* `tile` for the up to 2 * TILE rows that the registers were shaped for. */
INLINE void tiles(Term layer, const Term *adapters, int64_t n, const float *bias, const Element *other, Element *y,
                  int64_t m, int64_t width, int64_t columns, const int gated) {
    _Alignas(64) float sums[2 * TILE][COLUMNS];
    _tile_zero(0);
    _tile_zero(1);
    if (m > TILE) {
        _tile_zero(2);
        _tile_zero(3);
    }
    multiply_tiles(layer, m);
    for (int64_t k = 0; k < n; k++) multiply_tiles(adapters[k], m);
    _tile_stored(0, sums, 4 * COLUMNS);
    _tile_stored(1, sums[0] + TILE, 4 * COLUMNS);
    if (m > TILE) {
        _tile_stored(2, sums[TILE], 4 * COLUMNS);
        _tile_stored(3, sums[TILE] + TILE, 4 * COLUMNS);
    }
    for (int64_t j = 0; j < m; j++)
        finish(_mm512_load_ps(sums[j]), _mm512_load_ps(sums[j] + TILE), bias, other ? other + j * width : 0,
               y + j * width, columns, gated);
}
#else
#define TILE 1
#define TILE_INPUTS 1
#define may_use_tiles 0
#define shape_tiles(m)
#define tiles tile_by_number
#define _tile_release()
#endif

/* A policy's adapter of a layer, both factors in panels: down [ranks, inputs], up [outputs, ranks]. */
typedef struct {
    const Element *down, *up;
} Adapter;

/* How many of the rows from the first on have one policy. */
INLINE int64_t alike(const int32_t *policies, int64_t rows) {
    int64_t n = 1;
    while (n < rows && policies[n] == policies[0]) n++;
    return n;
}

/* Whether any of n rows is of the policy. */
INLINE int is_among(const int32_t *policies, int64_t n, int64_t policy) {
    for (int64_t j = 0; j < n; j++)
        if (policies[j] == policy) return 1;
    return 0;
}

/* Write inner [n, rows, ranks]: each of n policies' rows times its `down`. A block of `together` rows that has any of a
   policy is written whole, zero for rows of others, so that it stays one product; the rest is neither written nor read.
   Each thread of the team computes its part. */
INLINE void multiply_down(const Element *x, const int32_t *policies, const Adapter *adapters, Element *inner, int64_t n,
                          int64_t ranks, int64_t rows, int64_t inputs, int64_t together, int64_t tiled,
                          int64_t *shape) {
    const int64_t blocks = (rows + together - 1) / together;
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < blocks * n; unit++) {
        const int64_t policy = unit / blocks, first = unit % blocks * together;
        const int64_t end = first + together < rows ? first + together : rows;
        if (!is_among(policies + first, end - first, policy)) continue;
        for (int64_t row = first, m; row < end; row += m) {
            Element *to = inner + (policy * rows + row) * ranks;
            m = alike(policies + row, end - row);
            if (policies[row] != policy) {
                memset(to, 0, m * ranks * sizeof(Element));
                continue;
            }
            if (tiled && *shape != m) shape_tiles(*shape = m);
            for (int64_t r = 0; r < ranks; r += COLUMNS) {
                const Term down = {x + row * inputs, adapters[policy].down + r * inputs, inputs, 0};
                if (tiled)
                    tiles(down, 0, 0, 0, 0, to + r, m, ranks, COLUMNS, 0);
                else
                    tile_by_number(down, 0, 0, 0, 0, to + r, m, ranks, COLUMNS, 0);
            }
        }
    }
}

/* y [rows, width] = x [rows, inputs] W^T + bias, plus other [rows, width] where it is given. Gated, a panel's first 16
   outputs go through silu and are multiplied with its others; width is then half of W's rows, and other is not given.
   bias has COLUMNS numbers a panel. policies [rows], where they are given, name a row's adapter or are below 0; inner is
   room for [n, rows, ranks], n policies, ranks a multiple of COLUMNS. quantized is given where W is in 8 bits, room for
   [rows, groups]. With few rows each thread has the same panels every time, and finds them in its cache. */
_Static_assert(CHUNK % ROWS == 0 && CHUNK % ROWS_INT8 == 0 && CHUNK % (2 * TILE) == 0,
               "inner has the blocks of rows that are read from it");

void product(const Element *x, const void *weight, const float *bias, const Element *other, Element *y,
             const int32_t *policies, const Adapter *adapters, Element *inner, RowGroup *quantized, int64_t n,
             int64_t ranks, int64_t rows, int64_t inputs, int64_t width, int64_t gated, int64_t threads) {
    const int64_t outputs = gated ? COLUMNS / 2 : COLUMNS, panels = (width + outputs - 1) / outputs;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK, groups = quantized ? inputs / GROUP : 0;
    const int64_t panel_bytes = quantized ? groups * sizeof(Group) : COLUMNS * inputs * sizeof(Element);
    const int64_t tiled = may_use_tiles && !quantized && inputs % TILE_INPUTS == 0;
    const int64_t together = quantized ? ROWS_INT8 : tiled ? 2 * TILE : ROWS;
    omp_set_schedule(rows > FEW_ROWS ? omp_sched_dynamic : omp_sched_static, 0);
#pragma omp parallel num_threads(threads)
    {
        int64_t shape = 0;
        if (quantized) quantize_rows(x, quantized, rows, groups);
        if (policies)
            multiply_down(x, policies, adapters, inner, n, ranks, rows, inputs, together, tiled, &shape);
#pragma omp for schedule(runtime)
        for (int64_t unit = 0; unit < panels * chunks; unit++) {
            const int64_t panel = unit % panels, column = panel * outputs, end = (unit / panels + 1) * CHUNK;
            for (int64_t row = end - CHUNK; row < rows && row < end; row += together) {
                const int64_t left = (end < rows ? end : rows) - row, at = row * width + column;
                const Term layer = {x + row * inputs, (const char *)weight + panel * panel_bytes, inputs,
                                    quantized ? quantized + row * groups : 0};
                const float *b = bias ? bias + panel * COLUMNS : 0;
                const Element *o = other ? other + at : 0;
                Term added[ROWS > 2 * TILE ? ROWS : 2 * TILE];
                const int64_t m = left < together ? left : together;
                int64_t k = 0;
                for (int64_t policy = 0; policy < n; policy++)
                    if (is_among(policies + row, m, policy))
                        added[k++] = (Term){inner + (policy * rows + row) * ranks,
                                            adapters[policy].up + panel * COLUMNS * ranks, ranks, 0};
                if (tiled && shape != m) shape_tiles(shape = m);
                if (tiled)
                    tiles(layer, added, k, b, o, y + at, m, width, width - column, gated);
                else
                    tile_by_number(layer, added, k, b, o, y + at, m, width, width - column, gated);
            }
        }
        if (shape) _tile_release();
    }
}
