/* Products in float32: a part of products.c.

   In its compact form a weight lies in bfloat16, which holds each number of most published models: half the size, and
   nothing is rounded. A word is then one number of each of the panel's vectors, for the same input. */

#include "exponential.h"
#include "lanes.h"

#define COLUMNS (2 * LANES) /* of a panel */
#ifdef __AVX512F__
#define ROWS 12 /* together: their sums fill 24 of 32 registers */
#else
#define ROWS 6 /* together: their sums fill 12 of 16 registers */
#endif
#define ROWS_COMPACT ROWS

typedef Lanes Sum;
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Rows are in no other form. */
#define GROUP 1
typedef Element RowGroup;
#define quantize_rows(x, quantized, rows, groups)

INLINE int64_t bytes_of_panel(int64_t inputs, int64_t compact) { return inputs * COLUMNS * (compact ? 2 : 4); }

/* Lay out w [rows, inputs] in bfloat16; 0 where that would round a number. */
int64_t pack_compact(const uint32_t *w, uint32_t *out, int64_t rows, int64_t inputs, int64_t threads) {
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

INLINE void multiply_panel(Term term, Sum sums[][2], const int m, const int compact) {
    const Floats *whole = term.panel;
    const Words *halves = term.panel;
    for (int64_t i = 0; i < term.inputs; i++) {
        const Lanes low = compact ? (Lanes)(halves[i] << 16) : (Lanes)whole[2 * i];
        const Lanes high = compact ? (Lanes)(halves[i] & 0xffff0000) : (Lanes)whole[2 * i + 1];
#pragma GCC unroll 12
        for (int j = 0; j < m; j++) {
            const Lanes x = all(term.x[j * term.inputs + i]);
            sums[j][0] = fused(x, low, sums[j][0]);
            sums[j][1] = fused(x, high, sums[j][1]);
        }
    }
}

INLINE void multiply(Term term, Sum sums[][2], const int m) { multiply_panel(term, sums, m, 0); }

INLINE void multiply_compact(Term term, Sum sums[][2], const int m) { multiply_panel(term, sums, m, 1); }

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
