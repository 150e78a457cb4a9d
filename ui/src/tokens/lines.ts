/** A timeline laid out into lines of one height, broken where the window ends, where the text does, and at messages. */

import { cells, visible } from './cells'
import { lastAtMost, type Columns } from './columns'

/** The tokens [start, end). */
export interface Stretch {
  start: number
  end: number
}

/** A message's heading, or some of its tokens. */
export interface Line extends Stretch {
  kind: 'heading' | 'tokens'
  node: number
}

/** Shown for the second and later tokens of one character. */
const PART = '·'
/** Shown for a token that reads as nothing. */
const EMPTY = '∅'

/** What is shown for a token in a line: its id where nothing is known of how it reads. */
export function piece(columns: Columns, index: number): string {
  const shown = visible(columns.shown(index))
  if (shown !== '') return shown
  if (columns.isPart(index)) return PART
  return columns.hasText(index) ? EMPTY : `⟨${columns.id(index)}⟩`
}

/** The lines of a timeline, each message's after its heading. */
export function lines(columns: Columns, width: number): Line[] {
  return messages(columns).flatMap(({ node, start, end }): Line[] => [
    { kind: 'heading', start, end: start, node },
    ...broken(columns, start, end, width).map((line): Line => ({ kind: 'tokens', ...line, node })),
  ])
}

/**
 * The tokens [start, end) in lines of at most `width` columns; a longer token has a line for itself, and one that ends
 * with a line feed ends its.
 */
export function broken(columns: Columns, start: number, end: number, width: number): Stretch[] {
  const found: Stretch[] = []
  let from = start
  let used = 0
  const close = (at: number): void => {
    if (at > from) found.push({ start: from, end: at })
    from = at
    used = 0
  }
  for (let index = start; index < end; index++) {
    const taken = cells(piece(columns, index))
    if (used + taken > width) close(index)
    used += taken
    if (columns.shown(index).endsWith('\n')) close(index + 1)
  }
  close(end)
  return found
}

/** Spans that follow each other in one message are one. */
function messages(columns: Columns): (Stretch & { node: number })[] {
  const found: (Stretch & { node: number })[] = []
  for (const { node, start, end } of columns.spans) {
    const last = found.at(-1)
    if (last?.node === node) last.end = end
    else found.push({ node, start, end })
  }
  return found
}

/** The line that shows token `index`. */
export function lineOf(all: Line[], index: number): number {
  const at = lastAtMost(
    all.map((line) => line.start),
    index,
  )
  return all[at]?.kind === 'heading' ? Math.min(at + 1, all.length - 1) : at
}
