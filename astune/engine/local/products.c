/* Linear layers on a CPU: y = x W^T for few rows and for many, of bfloat16 or float32.

   Compiled by products.py. A weight lies in panels of COLUMNS outputs, [panel][word of inputs][output], which are
   read from beginning to end; a word is two inputs of bfloat16 or one of float32. It may have another form, which the
   parts for either describe. Each output is one sum in float32, of one thread, in an order that only the number of
   inputs decides, and is rounded once: no row's numbers depend on those beside it. What a policy's adapter adds is in
   that sum; its product with the first factor is rounded too. */

#include "element.h"
#include <immintrin.h>
#include <omp.h>
#include <string.h>

#define CHUNK 192 /* rows that a thread multiplies with one panel */
#define FEW_ROWS 64

typedef int32_t Word __attribute__((may_alias, aligned(2)));

/* A weight's form: its own numbers; bfloat16, for float32 that loses nothing by it; 8 bits. */
enum { WHOLE, HALVES, INT8 };
#define GROUP 32 /* inputs that share a scale in 8 bits */

/* Rows x [m, inputs] times a panel; `quantized` [m, groups] are the rows in 8 bits, for a panel in 8 bits. */
typedef struct {
    const Element *x;
    const void *panel;
    int64_t inputs, form;
    const void *quantized;
} Term;

#ifdef BFLOAT16
#include "products_bfloat16.h"
#else
#include "products_float32.h"
#endif

/* Sizes that products.py reads. */
const int64_t panel_columns = COLUMNS, int8_group_bytes = sizeof(Group) / COLUMNS;
const int64_t row_group_bytes = sizeof(RowGroup);

/* Lay out `rows` rows of w [rows, words]; what is missing of the last panel is zero. */
void pack(const Word *w, Word *out, int64_t rows, int64_t words, int64_t threads) {
    const int64_t panels = (rows + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t word = 0; word < words; word++)
            for (int64_t c = 0; c < COLUMNS; c++) {
                const int64_t row = panel * COLUMNS + c;
                out[(panel * words + word) * COLUMNS + c] = row < rows ? w[row * words + word] : 0;
            }
}

/* Lay out w [rows, inputs] in 8 bits; inputs are a multiple of GROUP. */
void pack_int8(const Element *w, Group *out, int64_t rows, int64_t inputs, int64_t threads) {
    static const Element none[GROUP];
    const int64_t panels = (rows + COLUMNS - 1) / COLUMNS, groups = inputs / GROUP;
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t c = 0; c < COLUMNS; c++) {
                const int64_t row = panel * COLUMNS + c;
                quantize_weights(row < rows ? w + row * inputs + g * GROUP : none, out + panel * groups + g, c);
            }
}

/* m rows of a layer and of what adapters add to it, in one sum; y and other have `width` columns, of which this
   panel's first `columns` count. */
INLINE void tile(Term layer, const Term *adapters, int64_t n, const float *bias, const Element *other, Element *y,
                 const int m, int64_t width, int64_t columns, const int gated) {
    Sum sums[ROWS][2];
#pragma GCC unroll 12
    for (int j = 0; j < m; j++) sums[j][0] = sums[j][1] = (Sum){0};
    multiply_layer(layer, sums, m);
    for (int64_t k = 0; k < n; k++) multiply(adapters[k], sums, m);
#pragma GCC unroll 12
    for (int j = 0; j < m; j++)
        finish(sums[j][0], sums[j][1], bias, other ? other + j * width : 0, y + j * width, columns, gated);
}

/* Numbers of rows that the compiler knows, so that the sums stay in registers. */
#define CASE(m) case m: tile(layer, adapters, n, bias, other, y, m, width, columns, gated); break
static void tile_by_number(Term layer, const Term *adapters, int64_t n, const float *bias, const Element *other,
                           Element *y, int64_t m, int64_t width, int64_t columns, const int gated) {
    switch (m) { CASE(1); CASE(2); CASE(3); CASE(4); CASE(5);
#if ROWS > 6
    CASE(6); CASE(7); CASE(8); CASE(9); CASE(10); CASE(11);
#endif
    default: tile(layer, adapters, n, bias, other, y, ROWS, width, columns, gated); }
}

#if defined(BFLOAT16) && defined(__AMX_BF16__)
#include "products_amx.h"
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

/* Bring x [rows, groups, GROUP] to 8 bits; each thread of the team does its part. */
INLINE void quantize_rows(const Element *x, RowGroup *out, int64_t rows, int64_t groups) {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * groups; i++) quantize_row(x + i * GROUP, out + i);
}

/* y [rows, width] = x [rows, inputs] W^T + bias, plus other [rows, width] where it is given. Gated, the first half of a
   panel's outputs goes through silu and is multiplied with the other; width is then half of W's rows, and other is not
   given. bias has COLUMNS numbers a panel. policies [rows], where they are given, name a row's adapter or are below 0;
   inner is room for [n, rows, ranks], n policies, ranks a multiple of COLUMNS. Where W is in 8 bits, quantized is room
   for [rows, groups]. With few rows each thread has the same panels every time, and finds them in its cache. */
_Static_assert(CHUNK % ROWS == 0 && CHUNK % ROWS_INT8 == 0 && CHUNK % (2 * TILE) == 0,
               "inner has the blocks of rows that are read from it");

void product(const Element *x, const void *weight, const float *bias, const Element *other, Element *y,
             const int32_t *policies, const Adapter *adapters, Element *inner, RowGroup *quantized, int64_t n,
             int64_t ranks, int64_t rows, int64_t inputs, int64_t width, int64_t gated, int64_t form,
             int64_t threads) {
    const int64_t outputs = gated ? COLUMNS / 2 : COLUMNS, panels = (width + outputs - 1) / outputs;
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK, groups = inputs / GROUP;
    const int64_t panel_bytes = bytes_of_panel(inputs, form);
    const int64_t tiled = may_use_tiles && form == WHOLE && inputs % TILE_INPUTS == 0;
    const int64_t together = form == INT8 ? ROWS_INT8 : tiled ? 2 * TILE : ROWS;
    omp_set_schedule(rows > FEW_ROWS ? omp_sched_dynamic : omp_sched_static, 0);
#pragma omp parallel num_threads(threads)
    {
        int64_t shape = 0;
        if (form == INT8) quantize_rows(x, quantized, rows, groups);
        if (policies)
            multiply_down(x, policies, adapters, inner, n, ranks, rows, inputs, together, tiled, &shape);
#pragma omp for schedule(runtime)
        for (int64_t unit = 0; unit < panels * chunks; unit++) {
            const int64_t panel = unit % panels, column = panel * outputs, end = (unit / panels + 1) * CHUNK;
            for (int64_t row = end - CHUNK; row < rows && row < end; row += together) {
                const int64_t left = (end < rows ? end : rows) - row, at = row * width + column;
                const Term layer = {x + row * inputs, (const char *)weight + panel * panel_bytes, inputs, form,
                                    form == INT8 ? quantized + row * groups : 0};
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
