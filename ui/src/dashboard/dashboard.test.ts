import { expect, it } from 'vitest'

import { appended, Growing, linesOf } from '../data/lines'
import type { Metric, Run, RunInfo, RunMetrics } from '../data/types'
import { curves, isMeant, others, overview } from './charts'
import { csv } from './csv'
import { pointAt, reduced, Scale, unbroken, type Sight } from './plot'
import { bounds, labels, powers, ticks } from './ticks'
import { groupsBy, means, smoothed } from './together'

const RUNS: RunMetrics[] = [
  {
    run: 'a',
    lines: [
      { step: 0, kind: 'validation', time: 0, elapsed_s: 30, metrics: { 'reward/mean': 0.1 } },
      { step: 1, kind: 'train', time: 0, elapsed_s: 60, metrics: { 'reward/mean': 0.2, 'time/rollout_s': 5, 'time/trained_s': 9 } },
      { step: 1, kind: 'train', time: 0, elapsed_s: 90, metrics: { 'reward/mean': 0.3, 'time/rollout_s': 6 } },
    ],
  },
  { run: 'b', lines: [{ step: 1, kind: 'train', time: 0, elapsed_s: 60, metrics: { 'reward/mean': null } }] },
]
const sight = (given: Partial<Sight>): Sight => ({ fromZero: false, isShare: false, isLog: false, isWhole: true, from: null, to: null, ...given })
const chart = (key: string) => overview([]).find((kind) => kind.key === key)!

it('lays runs over each other, a step that was run again as it was last', () => {
  const all = curves(chart('reward'), RUNS, null, 'step')
  expect(all.map(({ run, split, points }) => [run, split, points])).toEqual([
    [0, 'train', [[1, 0.3]]],
    [0, 'validation', [[0, 0.1]]],
    [1, 'train', [[1, null]]],
  ])
  expect(curves(chart('reward'), RUNS, null, 'time')[0]!.points).toEqual([[1, 0.2], [1.5, 0.3]])
})

it('shows the parts of the first run', () => {
  expect(curves(chart('phases'), RUNS, null, 'step').map(({ label, points }) => [label, points])).toEqual([['rollout', [[1, 6]]]])
})

it('has the held-out measurement among the phases of its step', () => {
  const line = (step: number, kind: 'train' | 'validation', elapsed_s: number, metrics: RunMetrics['lines'][number]['metrics']) => ({ step, kind, time: 0, elapsed_s, metrics })
  const run = {
    run: 'a',
    lines: [
      line(0, 'validation', 60, { 'time/validation_s': 9, 'time/trained_s': 0 }),
      line(1, 'train', 120, { 'time/rollout_s': 5, 'time/trained_s': 5 }),
      line(2, 'train', 180, { 'time/rollout_s': 6, 'time/trained_s': 11 }),
      line(2, 'validation', 240, { 'time/validation_s': 8, 'time/trained_s': 11 }),
    ],
  }
  const shown = (axis: 'step' | 'time') => curves(chart('phases'), [run], null, axis).map(({ label, points }) => [label, points])
  expect(shown('step')).toEqual([
    ['validation', [[0, 9], [1, 0], [2, 8]]],
    ['rollout', [[0, 0], [1, 5], [2, 6]]],
  ])
  expect(shown('time')[1]).toEqual(['rollout', [[1, 0], [2, 5], [3, 6]]])
})

it('has nothing of a part that a step is without, and does not know what is null', () => {
  const line = (step: number, metrics: RunMetrics['lines'][number]['metrics']) => ({ step, kind: 'train' as const, time: 0, elapsed_s: 0, metrics })
  const run = { run: 'a', lines: [line(1, { 'time/rollout_s': 5 }), line(2, {}), line(3, { 'time/rollout_s': null })] }
  expect(curves(chart('phases'), [run], null, 'step')[0]!.points).toEqual([[1, 5], [2, 0], [3, null]])
})

it('shows what is unknown as unknown', () => {
  const points: [number, number | null][] = [[1, 0.1], [2, 0.2], [3, null], [4, 0.4]]
  expect(unbroken(points)).toEqual([[[1, 0.1], [2, 0.2]], [[4, 0.4]]])
  expect([0, 2, 2.5, 3, 3.5, 4, 9].map((x) => pointAt(points, x))).toEqual([null, [2, 0.2], [2, 0.2], [3, null], [3, null], [4, 0.4], null])
})

it('draws many points as few that cover the same pixels', () => {
  const places = Array.from({ length: 100_000 }, (_, at): [number, number] => [at / 250, 100 * Math.sin(at / 7)])
  const few = reduced(places)
  expect(few.length).toBeLessThanOrEqual(4 * 400)
  for (const column of [0, 199, 399]) {
    const [all, kept] = [places, few].map((each) => each.filter(([x]) => Math.floor(x) === column).map(([, y]) => y))
    expect([Math.min(...kept!), Math.max(...kept!), kept![0], kept!.at(-1)]).toEqual([Math.min(...all!), Math.max(...all!), all![0], all!.at(-1)])
  }
  expect(few.every(([x], at) => at === 0 || few[at - 1]![0] <= x)).toBe(true)
})

it('reads measurements by metric as line by line', () => {
  const columns = { run: 'a', names: ['loss', 'reward'], at: [[0, 'validation', 7, 1], [1, 'train', 8, 2]] as [number, 'train' | 'validation', number, number][], columns: { reward: { of: null, values: [0.5, null] }, loss: { of: [1], values: [3] } } }
  expect(linesOf(columns)).toEqual({
    run: 'a',
    names: ['loss', 'reward'],
    lines: [
      { step: 0, kind: 'validation', time: 7, elapsed_s: 1, metrics: { reward: 0.5 } },
      { step: 1, kind: 'train', time: 8, elapsed_s: 2, metrics: { reward: null, loss: 3 } },
    ],
  })
})

it('has a scale for as many values as there are', () => {
  const points = Array.from({ length: 200_000 }, (_, x): [number, number] => [x, 1])
  const line = { label: '', short: '', colour: '', dashes: [], points }
  expect(new Scale([line], sight({}), { width: 100, height: 100 }).x).toEqual([0, 199_999])
})

it('shows a part of the axis, with the values there and the lines that lead to its edges', () => {
  const line = { label: '', short: '', colour: '', dashes: [], points: [[0, 1], [1, 2], [2, 3], [3, 9], [4, 50]] as [number, number][] }
  const scale = new Scale([line], sight({ from: 1, to: 2.5 }), { width: 162, height: 130 })
  expect(scale.x).toEqual([1, 2.5])
  expect(scale.y[1]).toBeLessThan(4)
  expect(scale.seen(line.points)).toEqual([[0, 1], [1, 2], [2, 3], [3, 9]])
  expect(scale.xAt(scale.atX(2))).toBeCloseTo(2)
  expect([scale.xAt(-99), scale.xAt(999)]).toEqual([1, 2.5])
  expect(new Scale([line], sight({ from: 7, to: 8 }), { width: 162, height: 130 }).seen(line.points)).toEqual([])
})

it('has a logarithmic axis, on which nothing below 0 has a place', () => {
  const line = { label: '', short: '', colour: '', dashes: [], points: [[0, 0], [1, 0.001], [2, 0.1], [3, -1], [4, 10]] as [number, number][] }
  const scale = new Scale([line], sight({ isLog: true }), { width: 162, height: 130 })
  expect(scale.atY(0.001) - scale.atY(0.1)).toBeCloseTo(scale.atY(0.1) - scale.atY(10))
  expect(unbroken(line.points, true)).toEqual([[[1, 0.001], [2, 0.1]], [[4, 10]]])
  expect(powers(-3.1, 1.1)).toEqual([0.001, 0.01, 0.1, 1, 10])
  expect(powers(-0.1, 1.1)).toEqual([1, 2, 5, 10])
  expect(powers(0.61, 0.62).length).toBeGreaterThan(1)
})

it('lays runs along the tokens that they sampled', () => {
  const line = (step: number, kind: 'train' | 'validation', metrics: RunMetrics['lines'][number]['metrics']) => ({ step, kind, time: 0, elapsed_s: 0, metrics: { 'reward/mean': step, ...metrics } })
  const run = { run: 'a', lines: [line(0, 'validation', {}), line(1, 'train', { 'balance/sampled': 2000 }), line(2, 'train', { 'balance/sampled': 500 }), line(2, 'validation', {})] }
  expect(curves(chart('reward'), [run], null, 'tokens').map(({ points }) => points)).toEqual([[[2, 1], [2.5, 2]], [[0, 0], [2.5, 2]]])
  expect(curves(chart('reward'), RUNS, null, 'tokens').flatMap(({ points }) => points)).toEqual([])
})

it('has a scale where all values are zero', () => {
  expect(bounds([0, 0], true)).toEqual([0, 1])
})

it('shows errors of a step that was not finished', () => {
  const setup = { errors: [{ split: 'train', step: 5, error_type: 'JudgeError', count: 2 }] } as Run
  const [part] = curves(chart('errors'), RUNS.slice(0, 1), setup, 'step')
  expect(part!.points.at(-1)).toEqual([5, 2])
  expect(part!.points.slice(0, -1).every(([, count]) => count === 0)).toBe(true)
})

it('leaves errors of a step that was not finished out where the axis is time', () => {
  const setup = { errors: [1, 5].map((step) => ({ split: 'train', step, error_type: 'JudgeError', count: step })) } as Run
  const [part] = curves(chart('errors'), RUNS.slice(0, 1), setup, 'time')
  expect(part!.points).toEqual([[1.5, 1]])
  expect(curves(chart('errors'), [{ run: 'a', lines: [] }], setup, 'time')).toEqual([])
})

it('takes one more line in place of its predecessor', () => {
  const line = { step: 0, kind: 'validation' as const, time: 1, elapsed_s: 31, metrics: { 'reward/mean': 0.5 } }
  const after = appended(RUNS, 'a', line)
  expect(after[0]!.lines).toHaveLength(3)
  expect(after[0]!.lines.at(-1)).toBe(line)
  expect(after[1]).toBe(RUNS[1])
})

it('keeps lines that came while all were asked for', () => {
  const line = (step: number) => ({ step, kind: 'train' as const, time: 0, elapsed_s: 0, metrics: {} })
  const answer = (...steps: number[]): RunMetrics[] => [{ run: 'a', lines: steps.map(line) }]
  const steps = (all: RunMetrics[] | null) => all?.[0]!.lines.map(({ step }) => step)
  const growing = new Growing()
  expect(growing.upon(null)).toBe(null)
  growing.add('a', line(2))
  const first = answer(1)
  expect(steps(growing.upon(first))).toEqual([1, 2])
  growing.forget()
  expect(steps(growing.upon(first))).toEqual([1, 2])
  growing.add('a', line(4))
  expect(steps(growing.upon(answer(1, 3)))).toEqual([1, 3, 4])
})

it('writes tables that spreadsheets read and do not calculate', () => {
  const line = { short: '', colour: '', dashes: [] }
  const lines = [
    { ...line, label: 'a, "b"', points: [[1, 0.5], [2, null]] as [number, number | null][] },
    { ...line, label: '=1+1', points: [[2, 3]] as [number, number | null][] },
  ]
  expect(csv('step', lines)).toBe('step,"a, ""b""",\'=1+1\r\n1,0.5,\r\n2,,3\r\n')
})

it('has round ticks within the scale', () => {
  expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
  expect(ticks(0.1, 3.2, 6, true)).toEqual([1, 2, 3])
  expect(ticks(5, 5, 4)).toEqual([5])
  expect(bounds([0.2, 1], true)).toEqual([0, 1.08])
  expect(bounds([], false)).toEqual([0, 1])
})

it('writes ticks so that they tell each other apart', () => {
  const written = (from: number, to: number): string => labels(ticks(from, to, 4)).join(' ')
  expect(written(10.0012, 10.0078)).toBe('10.002 10.004 10.006')
  expect(written(0.00102, 0.00118)).toBe('0.00105 0.0011 0.00115')
  expect(written(3.0001, 3.0009)).toBe('3.0002 3.0004 3.0006 3.0008')
  expect(written(1204.2, 1205.8)).toBe('1,204.5 1,205 1,205.5')
  expect(written(1.00002e-6, 1.00008e-6)).toBe('1.00002e-6 1.00004e-6 1.00006e-6 1.00008e-6')
  expect(written(-0.4, 1)).toBe('0 0.5 1')
  expect(labels([0.03125])).toEqual(['0.03125'])
})

const entry = (name: string, group: string, title: string): Metric => ({ name, group, title, title_zh: title, unit: '', meaning: `${title}.`, meaning_zh: '' })

it('has a chart for every metric, those that the catalogue does not know last', () => {
  const catalogue = [entry('reward/target_<target>_mean', 'reward', 'Reward of <target>'), entry('verl/<name>', 'engine_own', 'verl: <name>')]
  const metrics = { 'my/own': 1, 'verl/actor/lr': 1, 'reward/mean': 1, 'reward/target_white_mean': 1 }
  const runs: RunMetrics[] = [{ run: 'a', lines: [{ step: 1, kind: 'train', time: 0, elapsed_s: 0, metrics }] }]
  const groups = others(runs, catalogue)
  expect(groups.map(({ group, kinds }) => [group, ...kinds.map(({ title }) => title)])).toEqual([
    ['reward', 'Reward of white'],
    ['engine_own', 'verl: actor/lr'],
    ['other', 'my/own'],
  ])
  const kinds = groups.flatMap(({ kinds }) => kinds)
  expect(kinds.filter((kind) => isMeant(kind, 'ACTOR lr')).map(({ key }) => key)).toEqual(['verl/actor/lr'])
  expect(curves(kinds[0]!, runs, null, 'step').map(({ split, points }) => [split, points])).toEqual([['train', [[1, 1]]]])
})

it('counts held-out episodes that did not finish as failed, where the run knows of them', () => {
  const line = (step: number, kind: 'train' | 'validation', metrics: { [name: string]: number }) => ({ step, kind, time: 0, elapsed_s: 0, metrics })
  const lines = [
    line(1, 'train', { 'reward/success_rate': 0.5 }),
    line(1, 'validation', { 'reward/success_rate': 0.9 }),
    line(2, 'validation', { 'reward/success_rate': 0.9, 'reward/success_of_all': 0.45 }),
  ]
  const kind = overview([]).find(({ key }) => key === 'success')!
  expect(curves(kind, [{ run: 'a', lines }], null, 'step').map(({ split, points }) => [split, points])).toEqual([
    ['train', [[1, 0.5]]],
    ['validation', [[1, 0.9], [2, 0.45]]],
  ])
})

it('smooths what is known and leaves what is not', () => {
  const points: [number, number | null][] = [[1, 0], [2, 1], [3, null], [4, 1]]
  expect(smoothed(points, 0)).toBe(points)
  expect(smoothed(points, 0.5).map(([, y]) => (y === null ? null : Number(y.toFixed(2))))).toEqual([0, 0.67, null, 0.86])
  expect(smoothed([[1, 3], [2, 3], [3, 3]], 0.97).every(([, y]) => Math.abs(y! - 3) < 1e-12)).toBe(true)
})

it('takes runs of the same setting together, as mean and deviation', () => {
  const info = (run: string, lr: string) => ({ run, settings: { lr } }) as unknown as RunInfo
  const groups = groupsBy('lr', [info('a', '1'), info('b', '2'), info('c', '1')])
  expect(groups).toEqual([{ name: 'lr 1 (2)', runs: [0, 2] }, { name: 'lr 2 (1)', runs: [1] }])
  const curve = (run: number, points: [number, number | null][]) => ({ label: '', run, part: 0, split: 'train' as const, points })
  const [first, second] = means([curve(0, [[1, 1], [2, null]]), curve(1, [[1, 5]]), curve(2, [[1, 3], [2, 4]])], groups)
  expect(first).toMatchObject({ label: 'lr 1 (2)', run: 0, points: [[1, 2], [2, 4]], counts: [2, 1] })
  expect(first!.band!.map((each) => each.map((value) => Number(value.toFixed(3))))).toEqual([[1, 0.586, 3.414]])
  expect(second).toMatchObject({ run: 1, points: [[1, 5]], band: undefined, counts: undefined })
})

it('has a scale also for values that differ in their last digits alone', () => {
  const [from, to] = bounds([0.1 + 0.2, 0.3], false)
  const at = ticks(from, to, 5)
  expect(at.length).toBeGreaterThan(1)
  expect(new Set(labels(at)).size).toBe(at.length)
})
