/** How one token sequence becomes another: Myers's greedy algorithm (1986) on what lies between the ends they share.

    [1 2 3 4]  and  [1 9 3 4 5]   give   equal 0-1/0-1, replace 1-2/1-2, equal 2-4/2-4, insert 4-4/4-5
*/

export type Kind = 'equal' | 'replace' | 'delete' | 'insert'

export interface Change {
  kind: Kind
  a: [number, number]
  b: [number, number]
}

/** Beyond this many single differences the rest counts as replaced: it would be no help to read it token by token. */
const MOST_DIFFERENCES = 1000

/** The first token that differs; null where both are the same. */
export function firstDifference(a: number[], b: number[]): number | null {
  const length = Math.min(a.length, b.length)
  let at = 0
  while (at < length && a[at] === b[at]) at++
  return at === a.length && at === b.length ? null : at
}

/** Changes in order, together covering both sequences. */
export function changes(a: number[], b: number[]): Change[] {
  const start = firstDifference(a, b) ?? a.length
  let same = 0
  while (same < Math.min(a.length, b.length) - start && a[a.length - 1 - same] === b[b.length - 1 - same]) same++
  const matches = middleMatches(a.slice(start, a.length - same), b.slice(start, b.length - same))
  const pairs = [
    ...range(start).map((at): [number, number] => [at, at]),
    ...matches.map(([x, y]): [number, number] => [x + start, y + start]),
    ...range(same).map((at): [number, number] => [a.length - same + at, b.length - same + at]),
  ]
  return between(pairs, a.length, b.length)
}

/** Pairs of positions whose tokens are the same, ascending in both; none where there are too many differences. */
function middleMatches(a: number[], b: number[]): [number, number][] {
  const most = Math.min(a.length + b.length, MOST_DIFFERENCES)
  const zero = most + 1
  const furthest = new Int32Array(2 * most + 3).fill(-1)
  furthest[zero + 1] = 0
  /** What `furthest` was before each round, its middle part: diagonal d of round n stands at n + 1 + d. */
  const history: Int32Array[] = []
  for (let round = 0; round <= most; round++) {
    history.push(furthest.slice(zero - round - 1, zero + round + 2))
    for (let diagonal = -round; diagonal <= round; diagonal += 2) {
      const down = furthest[zero + diagonal + 1]!
      const right = furthest[zero + diagonal - 1]!
      let x = goesDown(diagonal, round, down, right) ? down : right + 1
      while (x < a.length && x - diagonal < b.length && a[x] === b[x - diagonal]) x++
      furthest[zero + diagonal] = x
      if (x >= a.length && x - diagonal >= b.length) return traced(history, a.length, b.length)
    }
  }
  return []
}

function traced(history: Int32Array[], endX: number, endY: number): [number, number][] {
  const pairs: [number, number][] = []
  let [x, y] = [endX, endY]
  const back = (toX: number, toY: number): void => {
    while (x > toX && y > toY) pairs.push([--x, --y])
    ;[x, y] = [toX, toY]
  }
  for (let round = history.length - 1; round > 0; round--) {
    const before = history[round]!
    const diagonal = x - y
    const down = before[round + 2 + diagonal]!
    const right = before[round + diagonal]!
    if (goesDown(diagonal, round, down, right)) back(down, down - diagonal - 1)
    else back(right, right - diagonal + 1)
  }
  back(0, 0)
  return pairs.reverse()
}

function goesDown(diagonal: number, round: number, down: number, right: number): boolean {
  return diagonal === -round || (diagonal !== round && right < down)
}

function between(pairs: [number, number][], lengthA: number, lengthB: number): Change[] {
  const found: Change[] = []
  let [x, y] = [0, 0]
  const add = (kind: Kind, toX: number, toY: number): void => {
    const last = found.at(-1)
    if (last?.kind === 'equal' && kind === 'equal') [last.a[1], last.b[1]] = [toX, toY]
    else found.push({ kind, a: [x, toX], b: [y, toY] })
    ;[x, y] = [toX, toY]
  }
  const differ = (toX: number, toY: number): void => {
    if (toX > x && toY > y) add('replace', toX, toY)
    else if (toX > x) add('delete', toX, toY)
    else if (toY > y) add('insert', toX, toY)
  }
  for (const [atX, atY] of pairs) {
    differ(atX, atY)
    add('equal', atX + 1, atY + 1)
  }
  differ(lengthA, lengthB)
  return found
}

function range(length: number): number[] {
  return Array.from({ length }, (_, index) => index)
}
