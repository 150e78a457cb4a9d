/** A list's geometry: which of its items are within a window, and where each one begins.

Heights are estimated until an item is measured. Sums over them are kept in a Fenwick tree, so that measuring an item
and finding one by its place take O(log n) for a million items.
*/

export class Heights {
  private readonly heights: Float64Array
  private readonly tree: Float64Array
  private readonly top: number

  constructor(
    readonly length: number,
    estimate: (index: number) => number,
  ) {
    this.heights = new Float64Array(length)
    this.tree = new Float64Array(length + 1)
    this.top = length === 0 ? 0 : 2 ** Math.floor(Math.log2(length))
    for (let index = 0; index < length; index++) this.heights[index] = estimate(index)
    for (let node = 1; node <= length; node++) {
      this.tree[node]! += this.heights[node - 1]!
      const parent = node + (node & -node)
      if (parent <= length) this.tree[parent]! += this.tree[node]!
    }
  }

  get total(): number {
    return this.offset(this.length)
  }

  /** Where item `index` begins. */
  offset(index: number): number {
    let sum = 0
    for (let node = Math.min(index, this.length); node > 0; node -= node & -node) sum += this.tree[node]!
    return sum
  }

  height(index: number): number {
    return this.heights[index] ?? 0
  }

  /** Sets the height of an item; returns by how much it changed. */
  measure(index: number, height: number): number {
    const change = height - this.height(index)
    if (change === 0) return 0
    this.heights[index] = height
    for (let node = index + 1; node <= this.length; node += node & -node) this.tree[node]! += change
    return change
  }

  /** The item that holds the place `y`; the first or the last one beyond the ends. */
  at(y: number): number {
    let node = 0
    let rest = y
    for (let step = this.top; step > 0; step >>= 1) {
      const next = node + step
      if (next <= this.length && this.tree[next]! <= rest) {
        node = next
        rest -= this.tree[next]!
      }
    }
    return Math.max(0, Math.min(node, this.length - 1))
  }

  /** Items [first, end) that a window shows, and `around` more pixels on either side. */
  window(top: number, height: number, around: number): { first: number; end: number } {
    if (this.length === 0) return { first: 0, end: 0 }
    return { first: this.at(Math.max(0, top - around)), end: this.at(top + height + around) + 1 }
  }
}
