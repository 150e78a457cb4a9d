/* Products in float32: a part of products.c.

   A weight may lie in bfloat16, which holds each number of most published models: half the size, and nothing is
   rounded. A word is then one number of each of the panel's vectors, for the same input. Or it lies in 8 bits, with a
   scale for each output and GROUP inputs; rows are then brought to 8 bits as well, and a group's products are exact. */

#include "exponential.h"
#include "lanes.h"
#include <float.h>

#define COLUMNS (2 * LANES) /* of a panel */
#ifdef __AVX512BW__
#define ROWS 12 /* together: their sums fill 24 of 32 registers */
#else
#define ROWS 6 /* together: their sums fill 12 of 16 registers */
#endif
#define ROWS_INT8 ROWS

typedef Lanes Sum;

/* GROUP inputs of a panel in 8 bits; an instruction multiplies two of each output. Scales are bfloat16. */
typedef struct {
    uint16_t scales[COLUMNS];
    int8_t weights[GROUP / 2][COLUMNS][2];
} Group;

/* GROUP inputs of a row in 8 bits, as wide as they are multiplied. */
typedef struct {
    float scale;
    int16_t numbers[GROUP];
} RowGroup;

INLINE int64_t bytes_of_panel(int64_t inputs, int64_t form) {
    return form == INT8 ? inputs / GROUP * sizeof(Group) : inputs * COLUMNS * (form == HALVES ? 2 : 4);
}

/* Lay out w [rows, inputs] in bfloat16; 0 where that would round a number. */
int64_t pack_halves(const uint32_t *w, uint32_t *out, int64_t rows, int64_t inputs, int64_t threads) {
    const int64_t panels = (rows + COLUMNS - 1) / COLUMNS;
    uint32_t lost = 0;
#pragma omp parallel for num_threads(threads) reduction(| : lost)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t i = 0; i < inputs && !(lost & 0xffff); i++)
            for (int64_t c = 0; c < LANES; c++) {
                const int64_t row = panel * COLUMNS + c;
                const uint32_t low = row < rows ? w[row * inputs + i] : 0;
                const uint32_t high = row + LANES < rows ? w[(row + LANES) * inputs + i] : 0;
                out[(panel * inputs + i) * LANES + c] = low >> 16 | (high & 0xffff0000);
                lost |= low | high;
            }
    return !(lost & 0xffff);
}

/* The scale that brings GROUP numbers to -127 .. 127; NaN where one of them is NaN or infinite, whose bits without the
   sign are the largest. */
INLINE float scale_of(const float *x) {
    const Word *words = (const Word *)x;
    int32_t top = 0;
#pragma omp simd reduction(max : top)
    for (int i = 0; i < GROUP; i++) {
        const int32_t size = words[i] & 0x7fffffff;
        top = size > top ? size : top;
    }
    const union { int32_t bits; float value; } magnitude = {top};
    return top < 0x7f800000 ? magnitude.value / 127 : NAN;
}

/* Round GROUP numbers to multiples of a scale; at most 127 of them, also where the scale was rounded down. */
INLINE void quantize(const float *x, float scale, int16_t *out) {
    const float inverse = scale >= FLT_MIN ? 1 / scale : 0;
#pragma omp simd
    for (int i = 0; i < GROUP; i++) out[i] = __builtin_irintf(x[i] * inverse);
}

/* Bring GROUP inputs of an output to 8 bits. */
INLINE void quantize_weights(const float *w, Group *group, int64_t column) {
    int16_t quantized[GROUP];
    group->scales[column] = to_bfloat16(scale_of(w));
    quantize(w, from_bfloat16(group->scales[column]), quantized);
    for (int i = 0; i < GROUP; i++) group->weights[i / 2][column][i % 2] = quantized[i];
}

/* Bring GROUP inputs of a row to 8 bits. */
INLINE void quantize_row(const float *x, RowGroup *out) {
    out->scale = scale_of(x);
    quantize(x, out->scale, out->numbers);
}

INLINE void multiply_panel(Term term, Sum sums[][2], const int m, const int halved) {
    const Floats *whole = term.panel;
    const Words *halves = term.panel;
    for (int64_t i = 0; i < term.inputs; i++) {
        const Lanes low = halved ? (Lanes)(halves[i] << 16) : (Lanes)whole[2 * i];
        const Lanes high = halved ? (Lanes)(halves[i] & 0xffff0000) : (Lanes)whole[2 * i + 1];
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const Lanes x = all(term.x[j * term.inputs + i]);
            sums[j][0] = fused(x, low, sums[j][0]);
            sums[j][1] = fused(x, high, sums[j][1]);
        }
    }
}

INLINE void multiply(Term term, Sum sums[][2], const int m) { multiply_panel(term, sums, m, 0); }

/* Sums of the products of pairs [LANES, 2], of which one has 8 bits. */
INLINE Indices products_of(Indices pairs, const int8_t *others) {
#ifdef __AVX512BW__
    return (Indices)_mm512_madd_epi16((__m512i)pairs, _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)others)));
#else
    return (Indices)_mm256_madd_epi16((__m256i)pairs, _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)others)));
#endif
}

INLINE void multiply_int8(Term term, Sum sums[][2], const int m) {
    const RowGroup *x = term.quantized;
    const Group *panel = term.panel;
    const int64_t groups = term.inputs / GROUP;
    for (int64_t g = 0; g < groups; g++) {
        Indices products[ROWS_INT8][2];
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) products[j][0] = products[j][1] = (Indices){0};
        for (int i = 0; i < GROUP / 2; i++)
#pragma GCC unroll 12
            for (int j = 0; j < m; j++) {
                const Indices pairs = *(const Word *)(x[j * groups + g].numbers + 2 * i) - (Indices){0};
                products[j][0] += products_of(pairs, panel[g].weights[i][0]);
                products[j][1] += products_of(pairs, panel[g].weights[i][LANES]);
            }
        const Lanes low = widened_halves(panel[g].scales), high = widened_halves(panel[g].scales + LANES);
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const Lanes scale = all(x[j * groups + g].scale);
            sums[j][0] = fused(__builtin_convertvector(products[j][0], Lanes), low * scale, sums[j][0]);
            sums[j][1] = fused(__builtin_convertvector(products[j][1], Lanes), high * scale, sums[j][1]);
        }
    }
}

INLINE void multiply_layer(Term layer, Sum sums[][2], const int m) {
    if (layer.form == INT8)
        multiply_int8(layer, sums, m);
    else if (layer.form == HALVES)
        multiply_panel(layer, sums, m, 1);
    else
        multiply(layer, sums, m);
}

/* x / (1 + e^-x) of LANES numbers; one function, so that a row's numbers are the same beside any others. */
static __attribute__((noinline)) void silu(float *x) {
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        const float e = exp_of_negative(-fabsf(x[i]));
        x[i] *= (x[i] < 0 ? e : 1.0f) / (1.0f + e);
    }
}

/* Add what there is of `columns` numbers to a vector, and write as many. */
INLINE void store(Lanes sum, const Element *other, Element *y, int64_t columns) {
    const int64_t bytes = (columns < 0 ? 0 : least(columns, LANES)) * sizeof(Element);
    if (other) {
        Lanes added = {0};
        memcpy(&added, other, bytes);
        sum += added;
    }
    memcpy(y, &sum, bytes);
}

/* Write a row of a panel's sums; y has `columns` more columns. A gated panel has LANES outputs before the activation
   and as many that they are multiplied with. */
INLINE void finish(Sum low, Sum high, const float *bias, const Element *other, Element *y, int64_t columns,
                   const int gated) {
    if (bias) low += *(const Floats *)bias, high += *(const Floats *)(bias + LANES);
    if (gated) {
        silu((float *)&low);
        store(low * high, 0, y, columns);
    } else {
        store(low, other, y, columns);
        store(high, other ? other + LANES : 0, y + LANES, columns - LANES);
    }
}
