/** Two token sequences side by side: lines that hold what belongs together at one height. */

import type { Columns } from '../tokens/columns'
import { broken, type Stretch } from '../tokens/lines'
import type { Change, Kind } from './diff'

export interface Pair {
  kind: Kind
  a: Stretch | null
  b: Stretch | null
}

/** How many equal tokens are shown around a difference; the others are folded. */
const AROUND = 60

/** Lines for all changes; where a change takes more lines on one side, the other side's are empty. */
export function aligned(a: Columns, b: Columns, all: Change[], width: number): Pair[] {
  const pairs: Pair[] = []
  for (const change of all) {
    const left = broken(a, ...change.a, width)
    const right = broken(b, ...change.b, width)
    for (let row = 0; row < Math.max(left.length, right.length); row++) {
      pairs.push({ kind: change.kind, a: left[row] ?? null, b: right[row] ?? null })
    }
  }
  return pairs
}

export interface Folded {
  changes: Change[]
  /** How many equal tokens before the first change are left out. */
  hidden: number
}

/** The changes from shortly before the first difference on. */
export function fromFirstDifference(all: Change[]): Folded {
  const [first, ...rest] = all
  if (first?.kind !== 'equal' || rest.length === 0) return { changes: all, hidden: 0 }
  const hidden = Math.max(0, first.a[1] - first.a[0] - AROUND)
  const shown: Change = { kind: 'equal', a: [first.a[0] + hidden, first.a[1]], b: [first.b[0] + hidden, first.b[1]] }
  return { changes: [shown, ...rest], hidden }
}
