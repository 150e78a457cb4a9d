/* Products in bfloat16 by the matrix registers of AMX: a part of products.c. */

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
