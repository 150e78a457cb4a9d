/* What a decoder computes between its matrix products, for the few tokens of a decoding step on a CPU.

   Compiled by kernels.py, which holds the signatures once more, with Element float or bfloat16. Numbers are computed
   in float32 and rounded once, each by one thread in one order: no sequence's numbers depend on those beside it.
   Layouts are row-major; head dimensions are multiples of LANES. */

#include "element.h"
#include "exponential.h"
#include "lanes.h"
#include <omp.h>

#define FEW_TOKENS 32 /* for one thread */
#define QUERIES 4     /* that read a key together */
#define TOGETHER 8    /* rows that read an adapter's weight together */
#define INPUTS 512    /* of these rows, widened at once */

INLINE void norm(const Element *x, const Element *weight, Element *out, int64_t dim, float eps) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < dim; i++) squares += widened(x[i]) * widened(x[i]);
    const float scale = 1.0f / sqrtf(squares / dim + eps);
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) out[i] = rounded(widened(x[i]) * scale * widened(weight[i]));
}

/* out [rows, dim] = x [rows, dim] over its root mean square, times weight [dim]. */
void rms_norm(const Element *x, const Element *weight, Element *out, int64_t rows, int64_t dim, float eps,
              int64_t threads) {
#pragma omp parallel for if (rows > FEW_TOKENS) num_threads(threads)
    for (int64_t row = 0; row < rows; row++) norm(x + row * dim, weight, out + row * dim, dim, eps);
}

/* Turn the pairs (i, i + dim / 2) of a head by its position's angles; cos and sin are [dim / 2]. */
INLINE void turn(Element *x, const float *cos, const float *sin, int64_t dim) {
    const int64_t half = dim / 2;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = widened(x[i]), b = widened(x[i + half]);
        x[i] = rounded(a * cos[i] - b * sin[i]);
        x[i + half] = rounded(b * cos[i] + a * sin[i]);
    }
}

/* Norm (where weights [dim] are given) and turn queries and keys of qkv [tokens, heads + 2 kv_heads, dim] in place;
   store keys and values at their slots and positions [tokens] in keys, values [slots, kv_heads, capacity, dim]. */
void turn_and_store(Element *qkv, const Element *q_weight, const Element *k_weight, float eps, const float *cos,
                    const float *sin, const int64_t *slots, const int64_t *positions, Element *keys, Element *values,
                    int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dim, int64_t capacity,
                    int64_t threads) {
    const int64_t half = dim / 2;
#pragma omp parallel for if (tokens > FEW_TOKENS) num_threads(threads)
    for (int64_t token = 0; token < tokens; token++) {
        Element *x = qkv + token * (heads + 2 * kv_heads) * dim;
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            const Element *weight = head < heads ? q_weight : k_weight;
            if (weight) norm(x + head * dim, weight, x + head * dim, dim, eps);
            turn(x + head * dim, cos + token * half, sin + token * half, dim);
        }
        for (int64_t head = 0; head < kv_heads; head++) {
            const int64_t row = ((slots[token] * kv_heads + head) * capacity + positions[token]) * dim;
            const Element *key = x + (heads + head) * dim, *value = key + kv_heads * dim;
            for (int64_t i = 0; i < dim; i++) keys[row + i] = key[i];
            for (int64_t i = 0; i < dim; i++) values[row + i] = value[i];
        }
    }
}

/* The sum of each of LANES vectors, in its own lane: neighbours are merged, then neighbouring pairs, and so on. */
INLINE Lanes sums_of(Lanes *x) {
    const Indices lane = EACH_LANE;
#pragma GCC unroll 4
    for (int bit = 1; bit < LANES; bit *= 2) {
        const Indices from = lane + (((lane & bit) != 0) & (LANES - bit));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += 2 * bit)
            x[i] = __builtin_shuffle(x[i], x[i + bit], from) + __builtin_shuffle(x[i], x[i + bit], from + bit);
    }
    return x[0];
}

/* Keys or values [length, dim] of a sequence: the first `shared` tokens lie elsewhere, behind the address that they
   would have if their sequence began there. */
typedef struct {
    const Element *own, *prefix;
    int64_t shared;
} Rows;

INLINE const Element *row_of(Rows rows, int64_t token, const int64_t dim) {
    return (token < rows.shared ? rows.prefix : rows.own) + token * dim;
}

/* Products of n queries with the keys [length, dim] into scores [n, width]; what follows the length is padding.
   The values, needed next, are on their way meanwhile. */
INLINE void score(const Element *queries, Rows keys, Rows values, float *scores, const int n, int64_t length,
                  int64_t width, const int64_t dim, float scale) {
    Lanes query[n][dim / LANES];
    for (int j = 0; j < n; j++)
        for (int64_t i = 0; i < dim; i += LANES) query[j][i / LANES] = loaded(queries + j * dim + i) * scale;
    for (int64_t first = 0; first < length; first += LANES) {
        Lanes products[n][LANES];
        for (int k = 0; k < LANES; k++) {
            const int64_t t = first + k < length ? first + k : length - 1;
            const Element *key_row = row_of(keys, t, dim), *value_row = row_of(values, t, dim);
            for (int j = 0; j < n; j++) products[j][k] = (Lanes){0};
#pragma GCC unroll 8
            for (int64_t i = 0; i < dim; i += LANES) {
                const Lanes key = loaded(key_row + i);
                __builtin_prefetch(value_row + i, 0, 2);
                for (int j = 0; j < n; j++) products[j][k] = fused(query[j][i / LANES], key, products[j][k]);
            }
        }
        for (int j = 0; j < n; j++) *(Lanes *)(scores + j * width + first) = sums_of(products[j]);
    }
}

/* cap * tanh(x / cap) */
INLINE float capped(float x, float cap) {
    const float e = exp_of_negative(-2.0f * fabsf(x) / cap);
    return copysignf(cap * (1.0f - e) / (1.0f + e), x);
}

/* Scores [length] to weights, not yet divided by their sum, which is returned; cap is 0 where there is none. */
INLINE float exponentiate(float *scores, int64_t length, float cap) {
    float top = -INFINITY, sum = 0;
    if (cap > 0) {
#pragma omp simd
        for (int64_t t = 0; t < length; t++) scores[t] = capped(scores[t], cap);
    }
#pragma omp simd reduction(max : top)
    for (int64_t t = 0; t < length; t++) top = scores[t] > top ? scores[t] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < length; t++) sum += scores[t] = exp_of_negative(scores[t] - top);
    return sum;
}

/* out [n, dim] = weights [n, width] times values [length, dim], over the weights' sums [n]. */
INLINE void mix(const float *weights, const float *sums, Rows values, Element *out, const int n, int64_t length,
                int64_t width, const int64_t dim) {
    for (int64_t part = 0; part < dim; part += 4 * LANES) { /* as many sums as registers hold */
        const int64_t count = dim - part < 4 * LANES ? (dim - part) / LANES : 4;
        Lanes mixed[n][4];
        for (int j = 0; j < n; j++)
            for (int64_t i = 0; i < count; i++) mixed[j][i] = (Lanes){0};
        for (int64_t t = 0; t < length; t++) {
            const Element *row = row_of(values, t, dim) + part;
#pragma GCC unroll 4
            for (int64_t i = 0; i < count; i++) {
                const Lanes value = loaded(row + i * LANES);
                for (int j = 0; j < n; j++) mixed[j][i] = fused(all(weights[j * width + t]), value, mixed[j][i]);
            }
        }
        for (int j = 0; j < n; j++)
            for (int64_t i = 0; i < count * LANES; i++)
                out[j * dim + part + i] = rounded(mixed[j][i / LANES][i % LANES] / sums[j]);
    }
}

INLINE void attend_together(const Element *queries, Rows keys, Rows values, Element *out, float *scores, const int n,
                            int64_t length, const int64_t dim, float scale, float cap) {
    const int64_t width = (length + LANES - 1) / LANES * LANES;
    float sums[n];
    score(queries, keys, values, scores, n, length, width, dim, scale);
    for (int j = 0; j < n; j++) sums[j] = exponentiate(scores + j * width, length, cap);
    mix(scores, sums, values, out, n, length, width, dim);
}

/* Numbers of queries and dimensions that the compiler knows, so that what they need stays in registers. */
INLINE void attend_by_number(const Element *queries, Rows keys, Rows values, Element *out, float *scores, int n,
                             int64_t length, const int64_t dim, float scale, float cap) {
    switch (n) {
    case 1: attend_together(queries, keys, values, out, scores, 1, length, dim, scale, cap); break;
    case 2: attend_together(queries, keys, values, out, scores, 2, length, dim, scale, cap); break;
    case 3: attend_together(queries, keys, values, out, scores, 3, length, dim, scale, cap); break;
    default: attend_together(queries, keys, values, out, scores, QUERIES, length, dim, scale, cap);
    }
}

/* One query of each of several sequences: queries [sequences, heads, dim], whose rows stand query_stride apart,
   attend to the last `window` of the lengths [sequences] of their slots, of which the first shared [sequences]
   tokens lie in the slots prefixes [sequences]; out is [sequences, heads, dim]. scores is room for [threads,
   QUERIES, room], a multiple of LANES, aligned like Lanes; a cap above 0 bends the scores below it. Sequences
   follow each other, head by head: what they share stays near. */
void attend(const Element *queries, int64_t query_stride, const Element *keys, const Element *values, Element *out,
            float *scores, const int64_t *slots, const int64_t *lengths, const int64_t *prefixes,
            const int64_t *shared, int64_t window, int64_t sequences, int64_t heads, int64_t kv_heads, int64_t dim,
            int64_t capacity, float scale, float cap, int64_t threads, int64_t room) {
    const int64_t group = heads / kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = 0; item < sequences * kv_heads; item++) {
        const int64_t sequence = item % sequences, head = item / sequences;
        const int64_t length = lengths[sequence] < window ? lengths[sequence] : window;
        const int64_t first = lengths[sequence] - length, elsewhere = shared[sequence] - first;
        const int64_t row = ((slots[sequence] * kv_heads + head) * capacity + first) * dim;
        const int64_t prefix = ((prefixes[sequence] * kv_heads + head) * capacity + first) * dim;
        const Rows k = {keys + row, keys + prefix, elsewhere}, v = {values + row, values + prefix, elsewhere};
        float *own = scores + omp_get_thread_num() * QUERIES * room;
        for (int64_t j = head * group; j < (head + 1) * group; j += QUERIES) {
            const Element *q = queries + sequence * query_stride + j * dim;
            Element *o = out + (sequence * heads + j) * dim;
            const int64_t left = (head + 1) * group - j;
            if (dim == 64)
                attend_by_number(q, k, v, o, own, left, length, 64, scale, cap);
            else if (dim == 128)
                attend_by_number(q, k, v, o, own, left, length, 128, scale, cap);
            else
                attend_by_number(q, k, v, o, own, left, length, dim, scale, cap);
        }
    }
}

/* What a policy's adapter adds to a linear layer, whose outputs are columns of a product: down [inputs, rank] and
   up [rank, outputs], the rank a multiple of LANES. */
typedef struct {
    int64_t policy;
    const Element *down, *up;
    int64_t rank, first, outputs;
} LowRank;

INLINE void add_low_rank_together(const Element *x, Element *y, const int64_t *rows, LowRank adapter, const int n,
                                  int64_t inputs, int64_t width) {
    const int64_t rank = adapter.rank;
    float inner[n][rank], wide[n][INPUTS];
    for (int j = 0; j < n; j++)
        for (int64_t r = 0; r < rank; r++) inner[j][r] = 0;
    for (int64_t first = 0; first < inputs; first += INPUTS) {
        const int64_t left = inputs - first, count = left < INPUTS ? left : INPUTS;
        for (int j = 0; j < n; j++)
            for (int64_t i = 0; i < count; i++) wide[j][i] = widened(x[rows[j] * inputs + first + i]);
        for (int64_t r = 0; r < rank; r += LANES) {
            Lanes sums[n];
            for (int j = 0; j < n; j++) sums[j] = *(const Floats *)(inner[j] + r);
            for (int64_t i = 0; i < count; i++) {
                const Lanes weight = loaded(adapter.down + (first + i) * rank + r);
                for (int j = 0; j < n; j++) sums[j] = fused(all(wide[j][i]), weight, sums[j]);
            }
            for (int j = 0; j < n; j++) *(Floats *)(inner[j] + r) = sums[j];
        }
    }
    int64_t column = 0;
    for (; column + LANES <= adapter.outputs; column += LANES) {
        Lanes sums[n];
        for (int j = 0; j < n; j++) sums[j] = (Lanes){0};
        for (int64_t r = 0; r < rank; r++) {
            const Lanes weight = loaded(adapter.up + r * adapter.outputs + column);
            for (int j = 0; j < n; j++) sums[j] = fused(all(inner[j][r]), weight, sums[j]);
        }
        for (int j = 0; j < n; j++) {
            Element *out = y + rows[j] * width + adapter.first + column;
            const Lanes sum = loaded(out) + sums[j];
            for (int k = 0; k < LANES; k++) out[k] = rounded(sum[k]);
        }
    }
    for (; column < adapter.outputs; column++) {
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t r = 0; r < rank; r++)
                sum += inner[j][r] * widened(adapter.up[r * adapter.outputs + column]);
            Element *out = y + rows[j] * width + adapter.first + column;
            *out = rounded(widened(*out) + sum);
        }
    }
}

/* Add adapters' products with x [tokens, inputs] to y [tokens, width] in place. The rows of policy p are
   rows[ends[p - 1]] to rows[ends[p] - 1], and those that are in none keep what they have. */
void add_low_rank(const Element *x, Element *y, const int64_t *rows, const int64_t *ends, const LowRank *adapters,
                  int64_t count, int64_t policies, int64_t inputs, int64_t width, int64_t threads) {
    const int64_t total = ends[policies - 1];
#pragma omp parallel for schedule(dynamic) if (total > TOGETHER || policies > 1) num_threads(threads)
    for (int64_t block = 0; block < total / TOGETHER + policies; block++) {
        int64_t policy = 0, start = 0, behind = block; /* each policy's rows are in blocks of their own */
        while (policy < policies && behind >= (ends[policy] - start + TOGETHER - 1) / TOGETHER) {
            behind -= (ends[policy] - start + TOGETHER - 1) / TOGETHER;
            start = ends[policy++];
        }
        if (policy == policies) continue;
        const int64_t *from = rows + start + behind * TOGETHER;
        const int64_t left = ends[policy] - start - behind * TOGETHER;
        for (int64_t k = 0; k < count; k++) {
            if (adapters[k].policy != policy) continue;
            int64_t j = 0, n = left < TOGETHER ? left : TOGETHER;
            for (; j + TOGETHER <= n; j += TOGETHER)
                add_low_rank_together(x, y, from + j, adapters[k], TOGETHER, inputs, width);
            for (; j + 2 <= n; j += 2) add_low_rank_together(x, y, from + j, adapters[k], 2, inputs, width);
            for (; j < n; j++) add_low_rank_together(x, y, from + j, adapters[k], 1, inputs, width);
        }
    }
}
