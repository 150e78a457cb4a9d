import { describe, expect, it } from 'vitest'

import { changes, firstDifference, type Change } from './diff'

function applied(a: number[], b: number[], all: Change[]): number[] {
  return all.flatMap(({ kind, a: [x, toX], b: [y, toY] }) => (kind === 'equal' ? a.slice(x, toX) : b.slice(y, toY)))
}

function random(seed: number): () => number {
  let state = seed
  return () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648
}

describe('changes', () => {
  it('states the worked example', () => {
    expect(changes([1, 2, 3, 4], [1, 9, 3, 4, 5])).toEqual([
      { kind: 'equal', a: [0, 1], b: [0, 1] },
      { kind: 'replace', a: [1, 2], b: [1, 2] },
      { kind: 'equal', a: [2, 4], b: [2, 4] },
      { kind: 'insert', a: [4, 4], b: [4, 5] },
    ])
  })

  it('covers both sequences without gaps, equal parts are equal, and they lead from one to the other', () => {
    const next = random(7)
    for (let round = 0; round < 100; round++) {
      const sequence = (): number[] => Array.from({ length: Math.floor(next() * 14) }, () => Math.floor(next() * 4))
      const [a, b] = [sequence(), sequence()]
      const all = changes(a, b)
      let [x, y] = [0, 0]
      for (const change of all) {
        expect([change.a[0], change.b[0]]).toEqual([x, y])
        ;[x, y] = [change.a[1], change.b[1]]
        if (change.kind === 'equal') expect(a.slice(...change.a)).toEqual(b.slice(...change.b))
      }
      expect([x, y]).toEqual([a.length, b.length])
      expect(applied(a, b, all)).toEqual(b)
    }
  })

  it('finds the fewest differences', () => {
    const kept = changes([1, 2, 3, 1, 2, 2, 1], [3, 2, 1, 2, 1, 3])
      .filter((change) => change.kind === 'equal')
      .reduce((sum, change) => sum + change.a[1] - change.a[0], 0)
    expect(kept).toBe(4)
  })

  it('gives up on sequences that have nothing in common, soon', () => {
    const a = Array.from({ length: 20_000 }, (_, index) => index)
    const b = a.map((id) => id + 1_000_000)
    expect(changes(a, b)).toEqual([{ kind: 'replace', a: [0, 20_000], b: [0, 20_000] }])
  })
})

describe('firstDifference', () => {
  it('is null for equal sequences and the shorter length for a beginning', () => {
    expect(firstDifference([1, 2], [1, 2])).toBeNull()
    expect(firstDifference([1, 2], [1, 2, 3])).toBe(2)
    expect(firstDifference([1, 2], [3, 2])).toBe(0)
  })
})
