/** What colours mean: a token's class under each colouring. The classes' colours are those of the style sheet. */

import type { Colouring } from '../state/place'
import type { Columns } from './columns'

export const LEVELS = 8
/** Steps of a scale from "certain" to "unlikely"; and on each side of a scale around zero. */

/** Log-probabilities below this have the strongest colour. */
export const LEAST_LOGPROB = -8
/** A gap of this many nats, or more, has the strongest colour. */
export const GREATEST_GAP = 0.5

export function tokenClass(columns: Columns, index: number, colouring: Colouring, scale: number): string {
  const part = columns.isPart(index) ? ' part' : ''
  return `t ${shade(columns, index, colouring, scale)}${part}`
}

/**
 * @param scale the greatest advantage of the timeline, which has the strongest colour
 */
function shade(columns: Columns, index: number, colouring: Colouring, scale: number): string {
  const loss = columns.hasLoss(index)
  if (colouring === 'loss') {
    if (loss) return 'loss'
    return columns.span(index).sampled ? 'masked' : 'read'
  }
  if (colouring === 'logprob') return level('s', ratio(columns.logprob(index), LEAST_LOGPROB))
  if (colouring === 'gap') return diverging(gap(columns, index), GREATEST_GAP)
  return diverging(loss ? columns.advantage(index) : null, scale)
}

export function gap(columns: Columns, index: number): number | null {
  const [engine, trainer] = [columns.logprob(index), columns.trainerLogprob(index)]
  return engine === null || trainer === null ? null : trainer - engine
}

export function greatestAdvantage(columns: Columns): number {
  let greatest = 0
  for (const span of columns.spans) greatest = Math.max(greatest, Math.abs(columns.advantage(span.start) ?? 0))
  return greatest || 1
}

function ratio(value: number | null, end: number): number | null {
  return value === null ? null : value / end
}

function diverging(value: number | null, end: number): string {
  if (value === null) return 'none'
  return level(value < 0 ? 'n' : 'p', Math.abs(value) / end)
}

function level(prefix: string, part: number | null): string {
  if (part === null || Number.isNaN(part)) return 'none'
  return `${prefix}${Math.max(0, Math.min(LEVELS - 1, Math.floor(part * LEVELS)))}`
}
