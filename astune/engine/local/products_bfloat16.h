/* Products in bfloat16, on a CPU that multiplies it (AVX512-BF16 or AMX): a part of products.c.

   A weight may be in 8 bits, with a scale for each output and GROUP inputs, in the layout of AVX512-VNNI; rows are then
   brought to 8 bits as well, and a group's products are exact. What adapters add stays in bfloat16. */

#include "lanes.h"
#include <float.h>
#include <math.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COLUMNS 32 /* of a panel: two vectors of 16 */
#define ROWS 12    /* together: their sums fill 24 of 32 registers */
#define ROWS_INT8 8 /* where they are in 8 bits: their products fill 16 */

typedef __m512 Sum;

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

INLINE int64_t bytes_of_panel(int64_t inputs, int64_t form) {
    return form == INT8 ? inputs / GROUP * sizeof(Group) : COLUMNS * inputs * sizeof(Element);
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
    for (int v = 0; v < GROUP / 16; v++) numbers[v] = widened_halves(x + 16 * v);
}

/* Bring GROUP inputs of an output to 8 bits. */
INLINE void quantize_weights(const Element *w, Group *group, int64_t column) {
    __m512 numbers[GROUP / 16];
    int8_t quantized[GROUP];
    load_group(w, numbers);
    store(_mm512_set1_ps(scale_of(numbers)), group->scales + column, 1);
    quantize(numbers, _mm512_cvtss_f32(plus(_mm512_setzero_ps(), group->scales + column, 1)), quantized);
    for (int i = 0; i < GROUP; i++) group->weights[i / 4][column][i % 4] = quantized[i] + 128;
}

/* Bring GROUP inputs of a row to 8 bits. */
INLINE void quantize_row(const Element *x, RowGroup *out) {
    __m512 numbers[GROUP / 16];
    load_group(x, numbers);
    out->scale = scale_of(numbers);
    out->shift = -128 * quantize(numbers, out->scale, out->numbers);
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

INLINE void multiply(Term term, __m512 sums[][2], const int m) {
    const Element *panel = term.panel;
    for (int64_t i = 0; i < term.inputs; i += 2) {
        const __m512bh low = (__m512bh)_mm512_loadu_si512(panel + i * COLUMNS);
        const __m512bh high = (__m512bh)_mm512_loadu_si512(panel + i * COLUMNS + COLUMNS);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const Word *)(term.x + j * term.inputs + i));
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
                const __m512i four = _mm512_set1_epi32(*(const Word *)(x[j * groups + g].numbers + 4 * i));
                products[j][0] = _mm512_dpbusd_epi32(products[j][0], low, four);
                products[j][1] = _mm512_dpbusd_epi32(products[j][1], high, four);
            }
        }
        const __m512 low = widened_halves(panel[g].scales), high = widened_halves(panel[g].scales + COLUMNS / 2);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const __m512 scale = _mm512_set1_ps(x[j * groups + g].scale);
            sums[j][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[j][0]), _mm512_mul_ps(low, scale), sums[j][0]);
            sums[j][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[j][1]), _mm512_mul_ps(high, scale), sums[j][1]);
        }
    }
}

INLINE void multiply_layer(Term layer, __m512 sums[][2], const int m) {
    if (layer.form == INT8 && m <= ROWS_INT8)
        multiply_int8(layer, sums, m);
    else
        multiply(layer, sums, m);
}
