/** Two token sequences side by side, word by word: what belongs together stands in the same line. */

import { cells } from '../tokens/cells'
import type { Columns } from '../tokens/columns'
import { broken, piece, type Stretch } from '../tokens/lines'
import { changes, type Change } from './diff'

export interface Pair {
  a: Stretch | null
  b: Stretch | null
  /** Whether something in it is on one side alone. */
  differs: boolean
}

export interface Alignment {
  pairs: Pair[]
  /** The tokens of each side that the other one does not have. */
  onlyA: Uint8Array
  onlyB: Uint8Array
  /** How many equal tokens before the first change are left out. */
  hidden: number
}

/** How many equal words are shown before the first difference; the others are folded. */
const AROUND = 40

/** Both sequences in lines of at most `width` columns a side; where one has more to say, the other's lines are empty. */
export function aligned(a: Columns, b: Columns, width: number): Alignment {
  const [wordsA, wordsB] = [words(a), words(b)]
  const numbers = new Map<string, number>()
  const numbered = (all: Word[]): number[] => all.map(({ text }) => numbers.get(text) ?? numbers.set(text, numbers.size).size - 1)
  const found = changes(numbered(wordsA), numbered(wordsB))
  const [first] = found
  const folded = first?.kind === 'equal' && found.length > 1 ? Math.max(0, first.a[1] - AROUND) : 0
  const layout = new Layout(a, b, width)
  const only = { a: new Uint8Array(a.length), b: new Uint8Array(b.length) }
  for (const change of found) {
    const left = wordsA.slice(Math.max(folded, change.a[0]), change.a[1])
    const right = wordsB.slice(Math.max(folded, change.b[0]), change.b[1])
    if (change.kind !== 'equal') {
      for (const { start, end } of left) only.a.fill(1, start, end)
      for (const { start, end } of right) only.b.fill(1, start, end)
    }
    for (let at = 0; at < Math.max(left.length, right.length); at++) layout.add(left[at] ?? null, right[at] ?? null, change)
  }
  return { pairs: layout.done(), onlyA: only.a, onlyB: only.b, hidden: wordsA[folded]?.start ?? 0 }
}

interface Word extends Stretch {
  text: string
}

/**
 * Tokens that read as one word, with the space before it: `["the", " ans", "wer", " is"]` is `the`, ` answer`, ` is`. A message
 * begins a word, and so does what follows a line feed.
 */
export function words(columns: Columns): Word[] {
  const found: Word[] = []
  const begins = new Set(columns.spans.map(({ start }) => start))
  for (let index = 0; index < columns.length; index++) {
    const shown = columns.shown(index)
    const text = shown === '' ? piece(columns, index) : shown
    const last = found.at(-1)
    const isNew = !last || begins.has(index) || /^\s/.test(text) || /\s$/.test(last.text) || isWord(text[0]) !== isWord(last.text.at(-1))
    if (isNew) found.push({ start: index, end: index + 1, text })
    else {
      last.end = index + 1
      last.text += text
    }
  }
  return found
}

function isWord(letter: string | undefined): boolean {
  return letter !== undefined && /[\p{L}\p{N}·]/u.test(letter)
}

class Layout {
  private readonly pairs: Pair[] = []
  private row: Pair = { a: null, b: null, differs: false }
  private used = { a: 0, b: 0 }

  constructor(
    private readonly a: Columns,
    private readonly b: Columns,
    private readonly width: number,
  ) {}

  add(left: Word | null, right: Word | null, { kind }: Change): void {
    const lefts = left ? this.parts(this.a, left) : []
    const rights = right ? this.parts(this.b, right) : []
    for (let at = 0; at < Math.max(lefts.length, rights.length); at++) this.put(lefts[at] ?? null, rights[at] ?? null, kind !== 'equal')
    if (left?.text.endsWith('\n') || right?.text.endsWith('\n')) this.close()
  }

  done(): Pair[] {
    this.close()
    return this.pairs
  }

  /** A word that is wider than a line is broken. */
  private parts(columns: Columns, word: Word): Stretch[] {
    return cells(word.text) <= this.width ? [word] : broken(columns, word.start, word.end, this.width)
  }

  private put(left: Stretch | null, right: Stretch | null, differs: boolean): void {
    const [wideA, wideB] = [wide(this.a, left), wide(this.b, right)]
    if (this.used.a + wideA > this.width || this.used.b + wideB > this.width) this.close()
    if (left) this.row.a = { start: this.row.a?.start ?? left.start, end: left.end }
    if (right) this.row.b = { start: this.row.b?.start ?? right.start, end: right.end }
    this.row.differs ||= differs
    this.used = { a: this.used.a + wideA, b: this.used.b + wideB }
  }

  private close(): void {
    if (this.row.a || this.row.b) this.pairs.push(this.row)
    this.row = { a: null, b: null, differs: false }
    this.used = { a: 0, b: 0 }
  }
}

function wide(columns: Columns, stretch: Stretch | null): number {
  let sum = 0
  for (let at = stretch?.start ?? 0; at < (stretch?.end ?? 0); at++) sum += cells(piece(columns, at))
  return sum
}
