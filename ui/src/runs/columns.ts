/** The columns of the list of runs: what each one shows, and what it is sorted by. */

import type { RunInfo } from '../data/types'
import { duration, integer, moment, number, rate } from '../text/format'
import { t } from '../text/translate'
import type { Word } from '../text/words'

export interface Column {
  key: string
  title: string
  hint?: string
  /** Numbers stand at the right. */
  isNumber: boolean
  text: (info: RunInfo) => string
  /** Null, what is not known, comes last in either order. */
  value: (info: RunInfo) => number | string | null
}

export type Order = { key: string; descending: boolean }

/** How many settings are columns without being chosen. */
const SHOWN_SETTINGS = 4
/** And how many stand under the name of a run. */
const TOLD_SETTINGS = 2
const TO_THE_MINUTE = '2026-11-22 07:26'.length

export function columns(settings: string[]): Column[] {
  const of = (word: Word, value: Column['value'], text: Column['text'], hint?: Word): Column => ({
    key: word,
    title: t(word),
    hint: hint && t(hint),
    isNumber: !['started', 'model', 'backbone'].includes(word),
    value,
    text,
  })
  return [
    of('started', (info) => info.created_at, (info) => moment(info.created_at).slice(0, TO_THE_MINUTE)),
    of(
      'held_out_best',
      (info) => info.held_out?.best ?? null,
      (info) => (info.held_out ? `${rate(info.held_out.best)} · ${t('at_step', { n: info.held_out.best_step })}` : '–'),
      'held_out_hint',
    ),
    of('held_out_last', (info) => info.held_out?.last ?? null, (info) => rate(info.held_out?.last), 'held_out_hint'),
    of('held_out_first', (info) => info.held_out?.first ?? null, (info) => rate(info.held_out?.first), 'held_out_hint'),
    ...settings.map(ofSetting),
    of('seed', (info) => info.seed, (info) => (info.seed === null || info.seed === undefined ? '–' : String(info.seed))),
    of('at_work', (info) => info.elapsed_s, (info) => duration(info.elapsed_s), 'at_work_hint'),
    of('model', (info) => info.model, (info) => shortPath(info.model ?? '–')),
    of('backbone', (info) => info.backbone, (info) => info.backbone ?? '–'),
    of('reward', (info) => info.reward, (info) => number(info.reward)),
    of('steps', (info) => info.steps, (info) => integer(info.steps)),
    of('episodes', (info) => info.episodes, (info) => integer(info.episodes)),
  ]
}

/** A model in a folder by the folder's own name. */
function shortPath(path: string): string {
  return /^([/~.]|[A-Za-z]:)/.test(path) ? (path.split(/[/\\]/).findLast((part) => part !== '') ?? path) : path
}

function ofSetting(key: string): Column {
  const written = (info: RunInfo): string | null => info.settings?.[key] ?? null
  const value = (info: RunInfo): number | string | null => {
    const text = written(info)
    return text === null || text.trim() === '' || !Number.isFinite(Number(text)) ? text : Number(text)
  }
  return { key, title: key, isNumber: false, value, text: (info) => written(info) ?? '–' }
}

/** The settings in which the runs on show differ from each other, those first that differ within an experiment, as a sweep's do. */
export function differing(runs: RunInfo[]): string[] {
  const within = new Set([...byExperiment(runs).values()].flatMap(differingAtAll))
  return differingAtAll(runs).toSorted((one, other) => Number(within.has(other)) - Number(within.has(one)))
}

function byExperiment(runs: RunInfo[]): Map<string, RunInfo[]> {
  const found = new Map<string, RunInfo[]>()
  for (const info of runs) found.set(info.experiment, [...(found.get(info.experiment) ?? []), info])
  return found
}

function differingAtAll(runs: RunInfo[]): string[] {
  const values = new Map<string, Set<string>>()
  for (const { settings } of runs) {
    for (const [key, value] of Object.entries(settings ?? {})) values.set(key, (values.get(key) ?? new Set()).add(value))
  }
  return [...values].filter(([, set]) => set.size > 1).map(([key]) => key)
}

/** What tells each run from the others of its experiment: the first settings in which they differ, and the seed. */
export function distinctions(runs: RunInfo[]): Map<string, string> {
  const labels = new Map<string, string>()
  for (const group of byExperiment(runs).values()) {
    const keys = differingAtAll(group).slice(0, TOLD_SETTINGS)
    const bySeed = new Set(group.map(({ seed }) => seed)).size > 1
    for (const { run, settings, seed } of group) {
      const values = keys.map((key) => `${key.split('.').at(-1)} ${settings?.[key] ?? '–'}`)
      const parts = bySeed ? [...values, `${t('seed')} ${seed ?? '–'}`] : values
      if (parts.length > 0) labels.set(run, parts.join(' · '))
    }
  }
  return labels
}

/** Those that are columns: what was chosen, or the first few. */
export function settingsShown(differ: string[], chosen: string[] | null): string[] {
  return chosen === null ? differ.slice(0, SHOWN_SETTINGS) : differ.filter((key) => chosen.includes(key))
}

/** By a column; runs that are equal in it stay as they were, newest first. */
export function sortedRuns(runs: RunInfo[], column: Column | undefined, descending: boolean): RunInfo[] {
  if (!column) return runs
  const sign = descending ? -1 : 1
  return runs.toSorted((one, other) => {
    const [a, b] = [column.value(one), column.value(other)]
    if (a === null || b === null) return Number(a === null) - Number(b === null)
    if (typeof a === typeof b) return a < b ? -sign : a > b ? sign : 0
    return typeof a === 'number' ? -sign : sign
  })
}
