/* Linear layers in bfloat16 on a CPU that multiplies it (AVX512-BF16 or AMX): y = x W^T for few rows and for many.

   Compiled by _products.py. A weight lies in panels of COLUMNS outputs, [panel][pair of inputs][output][2], which are
   read from beginning to end. Each output is one sum in float32, of one thread, in an order that only the number of
   inputs decides, and is rounded once: no row's numbers depend on those beside it. What a policy's adapter adds is in
   that sum; its product with the first factor is rounded too. */

#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
#define COLUMNS 32 /* of a panel: two vectors of 16 */
#define ROWS 12    /* together: their sums fill 24 of 32 registers */
#define CHUNK 192  /* rows that a thread multiplies with one panel */
#define FEW_ROWS 64

typedef uint16_t Element;
typedef int32_t Pair __attribute__((may_alias, aligned(2)));

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

/* Rows x [m, inputs] times a panel. */
typedef struct {
    const Element *x, *panel;
    int64_t inputs;
} Term;

INLINE void multiply(Term term, __m512 sums[][2], const int m) {
    for (int64_t i = 0; i < term.inputs; i += 2) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(term.panel + i * COLUMNS);
        const __m512bh high = (__m512bh)_mm512_loadu_si512(term.panel + i * COLUMNS + COLUMNS);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const Pair *)(term.x + j * term.inputs + i));
            sums[j][0] = _mm512_dpbf16_ps(sums[j][0], pair, low);
            sums[j][1] = _mm512_dpbf16_ps(sums[j][1], pair, high);
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
    for (int64_t i = 0; i < term.inputs; i += TILE_INPUTS) {
        _tile_loadd(6, term.panel + i * COLUMNS, 4 * COLUMNS);
        _tile_loadd(7, term.panel + i * COLUMNS + COLUMNS, 4 * COLUMNS);
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
                const Term down = {x + row * inputs, adapters[policy].down + r * inputs, inputs};
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
   room for [n, rows, ranks], n policies, ranks a multiple of COLUMNS. With few rows each thread has the same panels every
   time, and finds them in its cache. */
_Static_assert(CHUNK % ROWS == 0 && CHUNK % (2 * TILE) == 0, "inner has the blocks of rows that are read from it");

void product(const Element *x, const Element *weight, const float *bias, const Element *other, Element *y,
             const int32_t *policies, const Adapter *adapters, Element *inner, int64_t n, int64_t ranks, int64_t rows,
             int64_t inputs, int64_t width, int64_t gated, int64_t threads) {
    const int64_t outputs = gated ? COLUMNS / 2 : COLUMNS, panels = (width + outputs - 1) / outputs;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK, tiled = may_use_tiles && inputs % TILE_INPUTS == 0;
    const int64_t together = tiled ? 2 * TILE : ROWS;
    omp_set_schedule(rows > FEW_ROWS ? omp_sched_dynamic : omp_sched_static, 0);
#pragma omp parallel num_threads(threads)
    {
        int64_t shape = 0;
        if (policies)
            multiply_down(x, policies, adapters, inner, n, ranks, rows, inputs, together, tiled, &shape);
#pragma omp for schedule(runtime)
        for (int64_t unit = 0; unit < panels * chunks; unit++) {
            const int64_t panel = unit % panels, column = panel * outputs, end = (unit / panels + 1) * CHUNK;
            for (int64_t row = end - CHUNK; row < rows && row < end; row += together) {
                const int64_t left = (end < rows ? end : rows) - row, at = row * width + column;
                const Term layer = {x + row * inputs, weight + panel * COLUMNS * inputs, inputs};
                const float *b = bias ? bias + panel * COLUMNS : 0;
                const Element *o = other ? other + at : 0;
                Term added[ROWS > 2 * TILE ? ROWS : 2 * TILE];
                const int64_t m = left < together ? left : together;
                int64_t k = 0;
                for (int64_t policy = 0; policy < n; policy++)
                    if (is_among(policies + row, m, policy))
                        added[k++] = (Term){inner + (policy * rows + row) * ranks,
                                            adapters[policy].up + panel * COLUMNS * ranks, ranks};
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
