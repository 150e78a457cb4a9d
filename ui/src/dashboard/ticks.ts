/** Scales of a chart: what range it shows, and at which round numbers its lines are. */

import { number } from '../text/format'

/** A range that holds all values with some air, and the zero where it is asked for. */
export function bounds(values: Iterable<number>, fromZero: boolean): [number, number] {
  let [least, greatest] = [Infinity, -Infinity]
  for (const value of values) {
    least = Math.min(least, value)
    greatest = Math.max(greatest, value)
  }
  if (least > greatest || (fromZero && least === 0 && greatest === 0)) return [0, 1]
  const low = fromZero ? Math.min(0, least) : least
  const high = fromZero ? Math.max(0, greatest) : greatest
  const size = Math.max(Math.abs(low), Math.abs(high))
  // What differs in its last digits alone has no ticks of its own.
  const air = (high - low > size * 1e-9 ? high - low : size || 1) * 0.08
  return [low === 0 && fromZero ? 0 : low - air, high === 0 && fromZero ? 0 : high + air]
}

/** Round numbers within a range, at most `most` of them: multiples of 1, 2 or 5 times a power of ten. */
export function ticks(from: number, to: number, most: number, whole = false): number[] {
  const span = to - from
  if (!(span > 0)) return [from]
  const power = 10 ** Math.floor(Math.log10(span / most))
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= most) ?? 10 * power
  if (whole) step = Math.max(1, Math.round(step))
  const first = Math.ceil(from / step - 1e-9)
  const count = Math.floor(to / step + 1e-9) - first + 1
  return Array.from({ length: Math.max(0, count) }, (_, index) => Number(((first + index) * step).toPrecision(12)))
}

/** Round numbers on a logarithmic axis between two powers of ten: these powers, and 2 and 5 times them where they are few. */
export function powers(from: number, to: number): number[] {
  const factors = to - from > 3 ? [1] : [1, 2, 5]
  const step = Math.max(1, Math.ceil((to - from) / 6))
  const found: number[] = []
  for (let power = Math.floor(from); power <= to; power += step) {
    for (const factor of factors) found.push(Number(`${factor}e${power}`))
  }
  const inside = found.filter((value) => Math.log10(value) >= from && Math.log10(value) <= to)
  return inside.length > 1 ? inside : ticks(10 ** from, 10 ** to, 4)
}

/** What is written at ticks: as many digits as tell each one from the next. */
export function labels(values: number[]): string[] {
  const step = values.length > 1 ? Math.min(...values.slice(1).map((value, at) => value - values[at]!)) : Infinity
  return values.map((value) => number(value, Math.max(4, magnitude(value) - magnitude(step) + 1)))
}

/** Of the first digit: 0 for 5, -3 for 0.002. */
function magnitude(value: number): number {
  return Math.floor(Math.log10(Math.abs(value)))
}
