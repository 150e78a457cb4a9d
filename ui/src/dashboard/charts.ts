/** The dashboard's charts: which measurements each one shows, and the curves that runs have for it. */

import type { Metric, MetricsLine, Run, RunMetrics, Split } from '../data/types'
import type { Axis } from '../state/place'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import { described, placeOf } from './catalogue'
import type { Band } from './plot'

export interface ChartKind {
  key: string
  title: string
  /** `%` where values are shares of 1. */
  unit: string
  /** What it shows, as the catalogue has it. */
  meaning: string
  /** Curves that every run has at most once: a measurement, of training or held-out steps; `old` is its name in runs of earlier versions. */
  metrics: { name: string; split: Split; old?: string }[]
  /** Or curves of one run only, one for each part that it has. */
  parts?: (run: RunMetrics, setup: Run | null) => Part[]
  /** The scale of the axis begins at 0. */
  fromZero: boolean
}

/** The charts of metrics that have none of their own in the overview, by the catalogue's groups. */
export interface ChartGroup {
  group: string
  kinds: ChartKind[]
}

interface Part {
  name: string
  points: [at: Moment, value: number | null][]
}

/** Of a step; when it was is not known of one that ended before it was measured. */
type Moment = { step: number; elapsed_s: number | null }

export interface Curve {
  label: string
  /** Index of the run among those on show, and of the part: what colour and dashes follow from. */
  run: number
  part: number
  split: Split
  /** Ascending in x, one value for each x. */
  points: [x: number, y: number | null][]
  band?: Band
  /** Of a mean of runs: how many runs each point is of. */
  counts?: number[]
}

const both = (name: string): ChartKind['metrics'] => [
  { name, split: 'train' },
  name === SUCCESS ? { name: HELD_OUT_SUCCESS, split: 'validation', old: name } : { name, split: 'validation' },
]

const SUCCESS = 'reward/success_rate'
/** Of held-out episodes, those that did not finish count as failed, as where the best model is chosen. */
const HELD_OUT_SUCCESS = 'reward/success_of_all'
/** What most readers look at first, by the chart's key. */
const OVERVIEW: { [key: string]: string } = {
  reward: 'reward/mean',
  success: SUCCESS,
  length: 'episodes/sampled_tokens_mean',
  turns: 'episodes/turns_mean',
  entropy: 'train/entropy',
  loss: 'train/loss',
  gradient: 'train/grad_norm',
  lr: 'train/lr',
  mismatch: 'train/logprob_diff_mean',
  speed: 'engine/tokens_per_s_out',
}
/** All metrics that the first charts are drawn of. */
export const FIRST_METRICS = [...Object.values(OVERVIEW), HELD_OUT_SUCCESS, 'time/*', 'balance/*', 'episodes/failed_attempts']
const FROM_ZERO = ['train/lr', 'train/grad_norm']
const SAMPLED = 'balance/sampled'
const TRAINING_ONLY = ['engine/tokens_per_s_out']

/** The first charts, which every run has. */
export function overview(catalogue: Metric[]): ChartKind[] {
  const kinds = Object.entries(OVERVIEW).map(([key, name]) => ({ ...chartOf(name, catalogue), key }))
  const parts: [key: string, title: Word, meaning: Word, unit: string, parts: ChartKind['parts']][] = [
    ['phases', 'chart_phases', 'chart_phases_hint', 'seconds', phases],
    ['balance', 'chart_balance', 'chart_balance_hint', 'tokens', balance],
    ['errors', 'chart_errors', 'chart_errors_hint', 'episodes', errors],
  ]
  const ofParts = parts.map(([key, title, meaning, unit, made]) => ({ key, title: t(title), unit, meaning: t(meaning), metrics: [], parts: made, fromZero: true }))
  return [...kinds, ...ofParts]
}

/** A chart for every other metric that one of the runs has: in the catalogue's order, and what it does not know last. */
export function others(runs: RunMetrics[], catalogue: Metric[]): ChartGroup[] {
  const shown = new Set(Object.values(OVERVIEW))
  const names = new Set<string>()
  for (const run of runs) for (const name of run.names ?? []) names.add(name)
  for (const { lines } of runs) for (const { metrics } of lines) for (const name in metrics) names.add(name)
  const placed = [...names]
    .filter((name) => !shown.has(name))
    .map((name) => ({ kind: chartOf(name, catalogue), ...placeOf(name, catalogue) }))
    .sort((a, b) => a.at - b.at || (a.kind.key < b.kind.key ? -1 : 1))
  const groups = [...new Set(placed.map(({ group }) => group))]
  return groups.map((group) => ({ group, kinds: placed.filter((each) => each.group === group).map(({ kind }) => kind) }))
}

/** Whether a chart is meant by words that a reader looks for: all of them are in its name, title or meaning. */
export function isMeant(kind: ChartKind, wanted: string): boolean {
  const text = `${kind.key} ${kind.metrics[0]?.name ?? ''} ${kind.title} ${kind.meaning}`.toLowerCase()
  return wanted.toLowerCase().split(/\s+/).every((word) => text.includes(word))
}

function chartOf(name: string, catalogue: Metric[]): ChartKind {
  const { title, unit, meaning } = described(name, catalogue)
  const metrics = TRAINING_ONLY.includes(name) ? both(name).slice(0, 1) : both(name)
  return { key: name, title, unit: unit === 'share' ? '%' : unit, meaning, metrics, fromZero: unit !== '' || FROM_ZERO.includes(name) }
}

/** The curves of a chart; for one of parts those of the first run. */
export function curves(kind: ChartKind, runs: RunMetrics[], setup: Run | null, axis: Axis): Curve[] {
  if (kind.parts) {
    const [run] = runs
    if (!run) return []
    const at = placeOn(axis, run)
    return kind
      .parts(run, setup)
      .map(({ name, points }, part): Curve => ({ label: name, run: 0, part, split: 'train', points: placed(points, at) }))
      .filter(({ points }) => points.length > 0)
  }
  return runs.flatMap((run, index) => {
    const at = placeOn(axis, run)
    return kind.metrics.flatMap(({ name, split, old = name }): Curve[] => {
      const lines = run.lines.filter((line) => line.kind === split && (name in line.metrics || old in line.metrics))
      if (lines.length === 0) return []
      const points = lines.map((line): [Moment, number | null] => [line, line.metrics[name in line.metrics ? name : old] ?? null])
      const band = index === 0 && axis === 'step' && old === SUCCESS && split === 'validation' ? intervals(lines, setup) : undefined
      return [{ label: run.run, run: index, part: 0, split, points: ascending(placed(points, at)), band }]
    })
  })
}

/** Whether a chart shows anything that stands in the run itself, beside its measurements. */
export function usesRun({ parts, metrics }: ChartKind): boolean {
  return parts !== undefined || metrics.some(({ name }) => name === SUCCESS)
}

/** The 95 % intervals of held-out success, of the steps that have been measured. */
function intervals(lines: MetricsLine[], setup: Run | null): Band {
  const measured = new Set(lines.map(({ step }) => step))
  const rows = setup?.steps.filter(({ split, step }) => split === 'validation' && measured.has(step)) ?? []
  return rows.map(({ step, interval: [low, high] }): Band[number] => [step, low, high]).sort(([a], [b]) => a - b)
}

/** Without what has no place on the axis. */
function placed(points: Part['points'], at: Placing): Curve['points'] {
  const found: Curve['points'] = []
  for (const [moment, value] of points) {
    const x = at(moment)
    if (x !== null) found.push([x, value])
  }
  return found
}

type Placing = (moment: Moment) => number | null

/** Where a moment of a run is: its step, minutes at work, or thousands of tokens that were sampled up to it. */
function placeOn(axis: Axis, run: RunMetrics): Placing {
  if (axis === 'step') return ({ step }) => step
  if (axis === 'time') return ({ elapsed_s }) => (elapsed_s === null ? null : elapsed_s / 60)
  const sampled = new Map<number, number>()
  let [total, latest] = [0, 0]
  for (const { step, metrics } of linesOf(run, 'train')) {
    total += metrics[SAMPLED] ?? 0
    sampled.set(step, total / 1000)
    latest = step
  }
  if (total === 0) return () => null
  return ({ step }) => (step > latest ? null : (sampled.get(step) ?? before(sampled, step)))
}

/** What was sampled up to a step that has no line of its own, as that before the first one. */
function before(sampled: Map<number, number>, step: number): number {
  let found = 0
  for (const [at, tokens] of sampled) if (at <= step) found = tokens
  return found
}

/** A step that was run again after a resume counts as it was last. */
function ascending(points: [number, number | null][]): [number, number | null][] {
  if (points.every(([x], index) => index === 0 || points[index - 1]![0] < x)) return points
  return [...new Map(points)].sort(([a], [b]) => a - b)
}

/** A step's held-out measurement follows it, and has a line of its own; step 0 is nothing else. */
function phases(run: RunMetrics): Part[] {
  const timed = linesOf(run, 'validation').filter((line) => 'time/validation_s' in line.metrics)
  const lines = new Map(timed.map((line) => [line.step, line]))
  for (const line of linesOf(run, 'train')) {
    lines.set(line.step, { ...line, metrics: { ...lines.get(line.step)?.metrics, ...line.metrics } })
  }
  const inOrder = [...lines.values()].sort((a, b) => a.step - b.step)
  return namedParts(inOrder, (name) => /^time\/(.+)_s$/.exec(name)?.[1] ?? null, ['trained'])
}

function balance(run: RunMetrics): Part[] {
  return namedParts(linesOf(run, 'train'), (name) => /^balance\/(.+)$/.exec(name)?.[1] ?? null, [])
}

function errors(run: RunMetrics, setup: Run | null): Part[] {
  const lines = linesOf(run, 'train')
  const counted = setup?.errors.filter((error) => error.split === 'train') ?? []
  const types = [...new Set(counted.map((error) => error.error_type))]
  if (types.length === 0) {
    return namedParts(lines, (name) => (name === 'episodes/failed_attempts' ? 'failed attempts' : null), [])
  }
  return types.map((name) => ({
    name,
    points: [...lines, ...unfinished(lines, counted)].map((at) => [
      at,
      counted.filter((error) => error.error_type === name && error.step === at.step).reduce((sum, error) => sum + error.count, 0),
    ]),
  }))
}

/** Steps with errors that ended before they were measured. */
function unfinished(lines: MetricsLine[], counted: Run['errors']): Moment[] {
  const measured = new Set(lines.map((line) => line.step))
  const steps = new Set(counted.map((error) => error.step).filter((step) => !measured.has(step)))
  return [...steps].sort((a, b) => a - b).map((step) => ({ step, elapsed_s: null }))
}

/** One for each step, in order. */
function linesOf(run: RunMetrics, split: Split): MetricsLine[] {
  const last = new Map(run.lines.filter((line) => line.kind === split).map((line) => [line.step, line]))
  return [...last.values()].sort((a, b) => a.step - b.step)
}

function namedParts(lines: MetricsLine[], nameOf: (metric: string) => string | null, without: string[]): Part[] {
  const metrics = [...new Set(lines.flatMap((line) => Object.keys(line.metrics)))]
  return metrics.flatMap((metric) => {
    const name = nameOf(metric)
    if (name === null || without.includes(name)) return []
    return [{ name, points: lines.map((line): [MetricsLine, number | null] => [line, amount(line.metrics[metric])]) }]
  })
}

/** A step without a part had nothing of it; null is a value that is not known. */
function amount(value: number | null | undefined): number | null {
  return value === undefined ? 0 : value
}
