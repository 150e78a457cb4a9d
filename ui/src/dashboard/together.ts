/** Curves of several runs taken together: smoothed, and as mean and deviation of the runs that share a setting. */

import type { RunInfo } from '../data/types'
import type { Curve } from './charts'

export interface RunGroup {
  name: string
  /** Indices of its runs among those on show. */
  runs: number[]
}

/** Runs that differ in their seeds alone are one group. */
export const OVER_SEEDS = '*'
export const SMOOTHINGS = ['0', '0.6', '0.9', '0.97']

/**
 * An exponential moving average: each value is `weight` of the one before and the rest of its own, corrected for where it
 * begins. With 0.5, the points 0, 1, 1 become 0, 0.67, 0.86; what is unknown stays unknown.
 */
export function smoothed(points: Curve['points'], weight: number): Curve['points'] {
  if (weight <= 0) return points
  let [sum, weights] = [0, 0]
  return points.map(([x, y]): [number, number | null] => {
    if (y === null) return [x, null]
    sum = sum * weight + y
    weights = weights * weight + 1
    return [x, sum / weights]
  })
}

/** The runs on show by the value of a setting (`seed`, `model` or a key), or of all `keys` but the seed, in the order in which values first appear. */
export function groupsBy(setting: string, infos: (RunInfo | undefined)[], keys: string[] = []): RunGroup[] {
  const groups = new Map<string, number[]>()
  infos.forEach((info, index) => {
    const value = setting === OVER_SEEDS ? keys.filter((key) => key !== 'seed').map((key) => `${brief(key)} ${valueOf(key, info)}`).join(' · ') : valueOf(setting, info)
    groups.set(value, [...(groups.get(value) ?? []), index])
  })
  return [...groups].map(([value, runs]) => ({ name: `${setting === OVER_SEEDS ? value : `${setting} ${value}`} (${runs.length})`, runs }))
}

/**
 * One curve a group and split: the mean at each x of the runs that have a value there, and how many these are. Where they are
 * two or more, a band of one standard deviation: a single value has none.
 */
export function means(curves: Curve[], groups: RunGroup[]): Curve[] {
  return groups.flatMap(({ name, runs }, group) =>
    (['train', 'validation'] as const).flatMap((split): Curve[] => {
      const members = curves.filter((curve) => curve.split === split && runs.includes(curve.run))
      if (members.length === 0) return []
      const values = new Map<number, number[]>()
      for (const { points } of members) {
        for (const [x, y] of points) if (y !== null) values.set(x, [...(values.get(x) ?? []), y])
      }
      const at = [...values].sort(([a], [b]) => a - b)
      const points = at.map(([x, ys]): [number, number] => [x, mean(ys)])
      const several = at.filter(([, ys]) => ys.length > 1)
      const band = several.map(([x, ys]): [number, number, number] => [x, mean(ys) - deviation(ys), mean(ys) + deviation(ys)])
      const counts = members.length > 1 ? at.map(([, ys]) => ys.length) : undefined
      return [{ label: name, run: group, part: 0, split, points, band: band.length > 0 ? band : undefined, counts }]
    }),
  )
}

/** The end of a key, which tells settings apart. */
function brief(key: string): string {
  return key.split('.').at(-1) ?? key
}

function valueOf(setting: string, info: RunInfo | undefined): string {
  if (setting === 'seed') return String(info?.seed ?? '–')
  if (setting === 'model') return info?.model ?? '–'
  return info?.settings?.[setting] ?? '–'
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

/** Of a sample of two or more. */
function deviation(values: number[]): number {
  const middle = mean(values)
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1))
}
