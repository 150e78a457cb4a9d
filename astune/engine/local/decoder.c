/* All layers of a decoder for tokens that attend one by one, in one call: for one row, starting their operations
   one after another from Python takes 2 of 13 ms.

   Compiled by decoder.py, which holds the structs once more. What is computed, and in what order, is what products.c
   and kernels.c say. */

#include "products.c"
#include "kernels.c"

typedef struct {
    const void *weight;
    const float *bias;
    const Adapter *adapters;
    int64_t ranks, form;
} Linear;

typedef struct {
    const Element *input_norm, *q_norm, *k_norm, *inner_norm;
    Linear qkv, out, gate_up, down;
    Element *keys, *values;
} Layer;

/* The model's shape, and what all layers read of a step's rows. */
typedef struct {
    int64_t layers, width, heads, kv_heads, dim, inner_width, policies, rows, capacity, threads, score_room;
    float eps, scale;
    const float *cos, *sin;
    const int64_t *positions, *slots, *lengths, *prefixes, *shared;
    float *scores;
    const int32_t *policy_of_row; /* 0 where no row has an adapter */
    RowGroup *quantized;          /* [rows, groups] of the widest layer in 8 bits; none without one */
} Step;

INLINE void linear(const Step *s, const Linear *l, const Element *x, const Element *other, Element *y, Element *inner,
                   int64_t inputs, int64_t width, int64_t gated) {
    const int64_t policies = s->policy_of_row && l->adapters ? s->policies : 0;
    product(x, l->weight, l->bias, other, y, policies ? s->policy_of_row : 0, l->adapters, inner, s->quantized, policies,
            l->ranks, s->rows, inputs, width, gated, l->form, s->threads);
}

/* x [rows, width] in place; room is for [rows, width + (2 heads + 2 kv_heads) dim + inner_width] and, behind these,
   for [policies, rows, ranks] of the layer with the most. */
void decode(const Step *s, const Layer *layers, Element *x, Element *room) {
    const int64_t n = s->rows, heads_width = s->heads * s->dim, qkv_width = heads_width + 2 * s->kv_heads * s->dim;
    Element *normed = room, *qkv = normed + n * s->width, *attended = qkv + n * qkv_width;
    Element *gated = attended + n * heads_width, *inner = gated + n * s->inner_width;
    for (const Layer *l = layers; l < layers + s->layers; l++) {
        rms_norm(x, l->input_norm, normed, n, s->width, s->eps, s->threads);
        linear(s, &l->qkv, normed, 0, qkv, inner, s->width, qkv_width, 0);
        turn_and_store(qkv, l->q_norm, l->k_norm, s->eps, s->cos, s->sin, s->slots, s->positions, l->keys, l->values, n,
                       s->heads, s->kv_heads, s->dim, s->capacity, s->threads);
        attend(qkv, qkv_width, l->keys, l->values, attended, s->scores, s->slots, s->lengths, s->prefixes, s->shared,
               INT64_MAX, n, s->heads, s->kv_heads, s->dim, s->capacity, s->scale, 0, s->threads, s->score_room);
        linear(s, &l->out, attended, x, x, inner, heads_width, s->width, 0);
        rms_norm(x, l->inner_norm, normed, n, s->width, s->eps, s->threads);
        linear(s, &l->gate_up, normed, 0, gated, inner, s->width, s->inner_width, 1);
        linear(s, &l->down, gated, x, x, inner, s->inner_width, s->width, 0);
    }
}
