import { describe, expect, it } from 'vitest'

import { Heights } from './virtual'

describe('Heights', () => {
  it('agrees with adding up, whatever was measured', () => {
    let seed = 5
    const next = (below: number): number => (seed = (seed * 48271) % 2147483647) % below
    for (const length of [1, 2, 7, 64, 100]) {
      const plain = Array.from({ length }, () => 10 + next(40))
      const heights = new Heights(length, (index) => plain[index]!)
      for (let change = 0; change < 50; change++) {
        const index = next(length)
        const height = next(200)
        expect(heights.measure(index, height)).toBe(height - plain[index]!)
        plain[index] = height
      }
      const offsets = plain.map((_, index) => plain.slice(0, index).reduce((sum, height) => sum + height, 0))
      expect(plain.map((_, index) => heights.offset(index))).toEqual(offsets)
      plain.forEach((height, index) => {
        if (height > 0) expect(heights.at(offsets[index]! + height / 2)).toBe(index)
      })
    }
  })

  it('has a window of the items that are seen, and of some around it', () => {
    const heights = new Heights(1_000_000, () => 20)
    expect(heights.total).toBe(20_000_000)
    expect(heights.window(0, 100, 0)).toEqual({ first: 0, end: 6 })
    expect(heights.window(10_000_000, 100, 40)).toEqual({ first: 499_998, end: 500_008 })
    expect(heights.window(19_999_990, 100, 0)).toEqual({ first: 999_999, end: 1_000_000 })
  })

  it('has nothing where there is nothing', () => {
    const heights = new Heights(0, () => 20)
    expect(heights.total).toBe(0)
    expect(heights.window(0, 100, 100)).toEqual({ first: 0, end: 0 })
  })
})
