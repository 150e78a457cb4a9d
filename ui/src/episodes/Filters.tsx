/** Search, sorting and filters of the episode list. */

import { useEffect, useRef, useState } from 'preact/hooks'

import { Select } from '../common/Select'
import type { Run } from '../data/types'
import { useResource } from '../state/resource'
import { useSource } from '../state/source'
import { integer } from '../text/format'
import { Histogram } from './Facets'
import { filterOf, go, NO_FILTER, NO_TALK, usePlace, type Place } from '../state/place'
import type { Word } from '../text/words'
import { t } from '../text/translate'

const TYPED_MS = 250
const SORTS: [string, Word][] = [
  ['', 'recorded'],
  ['step', 'step'],
  ['task', 'task'],
  ['reward', 'reward'],
  ['success', 'success'],
  ['status', 'status'],
  ['error_type', 'error_type'],
  ['agent', 'agent'],
  ['seconds', 'seconds'],
  ['n_tokens', 'length'],
  ['n_sampled', 'sampled'],
  ['n_trained', 'trained'],
  ['n_turns', 'turns'],
  ['branches', 'branches'],
]

type Filter = keyof typeof NO_FILTER

interface Props {
  run: Run | null
  written: number
  isOpen: boolean
}

export function Filters({ run, written, isOpen }: Props) {
  const place = usePlace()
  const source = useSource()
  const filter = filterOf(place)
  const facets = useResource(place.run === null ? null : `facets ${place.run} ${JSON.stringify({ ...filter, sort: '', order: '' })}`, () =>
    source.facets(place.run ?? '', filter),
  )
  const known = useLast(facets.data)
  useEffect(() => {
    if (written > 0) facets.again()
  }, [written])
  const [cleared, setCleared] = useState(0)
  const set = (changes: Partial<Place>): void => go(changes, { replace: true })
  const given = (Object.keys(NO_FILTER) as Filter[]).filter((key) => place[key] !== '' && !['sort', 'order'].includes(key))
  const errors = [...new Set(run?.errors.map((error) => error.error_type))]
  /** With how many episodes there are of it. */
  const counted = (facet: 'split' | 'status' | 'error_type' | 'agent' | 'policy', value: string, text: string): [string, string] => {
    const found = known?.[facet].find(([each]) => each === value)
    return [value, known ? `${text} · ${integer(found?.[1] ?? 0)}` : text]
  }
  const steps = [...new Set(run?.steps.map((row) => row.step))]
  /** Also those that answered without being named in the settings: agents of no policy have the default one. */
  const policies = [...new Set([...(run?.policies ?? []), ...(known?.policy ?? []).map(([name]) => name), ...(place.policy ? [place.policy] : [])])].sort()
  const any: [string, string] = ['', t('any')]
  const clear = (): void => {
    setCleared((count) => count + 1)
    set({ ...NO_FILTER, sort: place.sort, order: place.order })
  }
  /** What was typed and has not been asked for yet goes with the fields of an earlier run, or before they were cleared. */
  const typing = `${place.run} ${cleared}`
  const select = (key: Filter, word: Word, options: [string, string][]) => (
    <Select label={t(word)} value={place[key]} options={[any, ...options]} onChange={(value) => set({ [key]: value })} />
  )
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <Typed key={`text ${typing}`} name="text" type="search" label={t('search')} hideLabel />
      <div class="filter-row">
        {place.list === '' && <Order />}
        {given.length > 0 && (
          <button type="button" class="quiet end" onClick={clear}>
            {t('clear')} ({given.length})
          </button>
        )}
      </div>
      {place.task_id !== '' && (
        <p class="chosen-task">
          <span class="cut">{t('only_task', { task: place.task_id })}</span>
          <button type="button" class="icon" aria-label={t('all_tasks')} title={t('all_tasks')} onClick={() => set({ task_id: '' })}>
            ✕
          </button>
        </p>
      )}
      <details class="fold filter-fold" open={isOpen}>
        <summary>{t('filters')}</summary>
        <div class="filter-grid" key={typing}>
          {select('split', 'split', [
            counted('split', 'train', t('train')),
            counted('split', 'validation', t('validation')),
          ])}
          {select('step', 'step', steps.map((step) => [String(step), String(step)]))}
          {select('status', 'status', (['success', 'failed', 'truncated', 'error'] as const).map((status) => counted('status', status, t(`episode_${status}`))))}
          {select('success', 'success', [
            ['true', t('yes')],
            ['false', t('no')],
          ])}
          {run && run.agents.length > 1 && select('agent', 'agent', run.agents.map((agent) => counted('agent', agent, agent)))}
          {source.served && policies.length > 1 && select('policy', 'policy', policies.map((policy) => counted('policy', policy, policy)))}
          {errors.length > 0 && select('error_type', 'error_type', errors.map((type) => counted('error_type', type, type)))}
          <Typed name="task" type="text" label={t('task')} />
          <Typed name="min_reward" type="number" label={t('reward_from')} />
          <Typed name="max_reward" type="number" label={t('reward_to')} />
          <Typed name="min_tokens" type="number" label={t('tokens_from')} />
          <Typed name="max_tokens" type="number" label={t('tokens_to')} />
          <Typed name="min_branches" type="number" label={t('branches_from')} />
        </div>
        {known && (
          <div class="histograms">
            <Histogram title={t('reward')} bins={known.reward} from="min_reward" to="max_reward" />
            <Histogram title={t('length')} unit={t('unit_tokens')} bins={known.n_tokens} from="min_tokens" to="max_tokens" />
          </div>
        )}
      </details>
    </form>
  )
}

/** What episodes are sorted by; tasks have an order of their own. */
function Order() {
  const place = usePlace()
  const set = (changes: Partial<Place>): void => go(changes, { replace: true })
  return (
    <>
      <Select label={t('sort')} hideLabel value={place.sort} options={SORTS.map(([key, word]) => [key, t(word)])} onChange={(sort) => set({ sort })} />
      <button
        type="button"
        class="icon"
        aria-label={`${t('order')}: ${t(place.order === 'desc' ? 'descending' : 'ascending')}`}
        title={t(place.order === 'desc' ? 'descending' : 'ascending')}
        onClick={() => set({ order: place.order === 'desc' ? '' : 'desc' })}
      >
        {place.order === 'desc' ? '↓' : '↑'}
      </button>
    </>
  )
}

/** The newest answer, also while the next one is awaited: what is shown does not flicker. */
function useLast<T>(value: T | null): T | null {
  const last = useRef(value)
  if (value !== null) last.current = value
  return last.current
}

interface TypedProps {
  name: Filter | keyof typeof NO_TALK
  type: 'search' | 'text' | 'number'
  label: string
  hideLabel?: boolean
}

/** A field whose filter follows when the typing rests. */
export function Typed({ name, type, label, hideLabel = false }: TypedProps) {
  const value = usePlace()[name]
  const [typed, setTyped] = useState(value)
  const waiting = useRef(0)
  useEffect(() => setTyped(value), [value])
  useEffect(() => () => clearTimeout(waiting.current), [])
  const change = (text: string): void => {
    setTyped(text)
    clearTimeout(waiting.current)
    waiting.current = window.setTimeout(() => go({ [name]: text }, { replace: true }), TYPED_MS)
  }
  return (
    <label class="field">
      {!hideLabel && <span>{label}</span>}
      <input
        type={type as 'text'}
        step="any"
        value={typed}
        {...(hideLabel ? { placeholder: label, 'aria-label': label, 'data-search': true } : {})}
        onInput={(event) => change(event.currentTarget.value)}
      />
    </label>
  )
}
