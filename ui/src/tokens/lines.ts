/** A timeline laid out into lines of one height, broken where the window ends, where the text does, and at messages. */

import { cells, visible } from './cells'
import { lastAtMost, type Columns } from './columns'

/** A message's heading, or the tokens [start, end). */
export interface Line {
  kind: 'heading' | 'tokens'
  start: number
  end: number
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

/**
 * Lines of at most `width` columns; a longer token has a line for itself, and one that ends with a line feed ends its.
 */
export function lines(columns: Columns, width: number): Line[] {
  const found: Line[] = []
  let start = 0
  let used = 0
  let node = -1
  const close = (end: number): void => {
    if (end > start) found.push({ kind: 'tokens', start, end, node })
    start = end
    used = 0
  }
  for (const span of columns.spans) {
    if (span.node !== node) {
      close(span.start)
      node = span.node
      found.push({ kind: 'heading', start: span.start, end: span.start, node })
    }
    for (let index = span.start; index < span.end; index++) {
      const taken = cells(piece(columns, index))
      if (used + taken > width) close(index)
      used += taken
      if (columns.shown(index).endsWith('\n')) close(index + 1)
    }
  }
  close(columns.length)
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
