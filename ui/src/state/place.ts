/** Where the reader is: all that a link to this state of the page must say. It lives in the address's hash. */

import type { EpisodeFilter, SessionFilter } from '../data/types'
import { Store, useStore } from './store'

export type View = 'runs' | 'overview' | 'episodes' | 'dashboard' | 'setup' | 'served'
export type Face = 'chat' | 'tokens' | 'branches' | 'compare' | 'details' | 'lanes'
export type Colouring = 'loss' | 'logprob' | 'advantage' | 'gap'
export type Axis = 'step' | 'time' | 'tokens'

export const FACES: Face[] = ['chat', 'tokens', 'branches', 'compare', 'details', 'lanes']
export const COLOURINGS: Colouring[] = ['loss', 'logprob', 'advantage', 'gap']
export const AXES: Axis[] = ['step', 'time', 'tokens']

export interface Place extends EpisodeFilter {
  view: View
  /** The run on show; null before one is chosen (the path of an opened run itself is ''). */
  run: string | null
  /** Runs that the dashboard lays over it. */
  over: string[]
  axis: Axis
  /** The part of the axis that charts show, in its unit; empty for its ends. */
  from: string
  to: string
  /** Keys of the charts whose values have a logarithmic axis. */
  log: string[]
  /** Words that the dashboard's charts are looked for with. */
  metric: string
  /** Weight of the moving average, and the setting whose runs are one curve; empty for each run by itself. */
  smooth: string
  group: string
  /** Whether the list is of episodes or of their tasks; how tasks are sorted, and which are left. */
  list: '' | 'tasks'
  by: string
  turned: string
  id: string
  face: Face
  timeline: number
  /** The message at the top of the interaction; -1 for its beginning. */
  node: number
  colour: Colouring
  /** The token that is pinned; -1 for none. */
  token: number
  /** The run whose episode is compared with, empty for this one; the episode, and its timeline. */
  with_run: string
  with: string
  with_timeline: number
  /** The session of a served model that is open, and which ones are listed. */
  session: string
  said: string
  model: string
  client: string
  user: string
  opinion: string
  /** Days as 2026-11-25, both of them within. */
  since: string
  until: string
  sessions: string
}

/** What restricts the list of sessions. */
export const NO_TALK = { said: '', model: '', client: '', user: '', opinion: '', since: '', until: '' }

export const NO_FILTER: EpisodeFilter = {
  split: '',
  step: '',
  task: '',
  status: '',
  agent: '',
  policy: '',
  error_type: '',
  task_id: '',
  min_reward: '',
  max_reward: '',
  success: '',
  min_branches: '',
  min_tokens: '',
  max_tokens: '',
  text: '',
  sort: '',
  order: '',
}

export const START: Place = {
  ...NO_FILTER,
  view: 'overview',
  run: null,
  over: [],
  axis: 'step',
  from: '',
  to: '',
  log: [],
  metric: '',
  smooth: '0',
  group: '',
  list: '',
  by: '',
  turned: '',
  id: '',
  face: 'chat',
  timeline: 0,
  node: -1,
  colour: 'loss',
  token: -1,
  with_run: '',
  with: '',
  with_timeline: 0,
  session: '',
  ...NO_TALK,
  sessions: '',
}

/** Changes of these are steps that the browser's back button undoes. */
const STEPS: (keyof Place)[] = ['view', 'run', 'id', 'face', 'session']

export function toHash(place: Place): string {
  const query = new URLSearchParams()
  for (const key of Object.keys(START) as (keyof Place)[]) {
    const value = place[key]
    if (key === 'view') {
      if (value !== viewOf(place)) query.set(key, place.view)
    } else if (Array.isArray(value)) value.forEach((item) => query.append(key, item))
    else if (value !== START[key]) query.set(key, String(value))
  }
  const text = query.toString()
  return text ? `#${text}` : '#'
}

/** What a link shows that names no view: an episode or a search opens the list of episodes. */
function viewOf(place: Place): View {
  const inList: (keyof Place)[] = ['id', 'list', ...(Object.keys(NO_FILTER) as (keyof EpisodeFilter)[])]
  return inList.some((key) => place[key] !== '') ? 'episodes' : 'overview'
}

/** The inverse of `toHash`; what it does not know or understand is left out. */
export function fromHash(hash: string): Place {
  const query = new URLSearchParams(hash.replace(/^#/, ''))
  const place: Record<string, unknown> = { ...START }
  for (const key of Object.keys(START) as (keyof Place)[]) {
    const text = query.get(key)
    if (text === null) continue
    if (Array.isArray(START[key])) place[key] = query.getAll(key)
    else if (typeof START[key] === 'number') place[key] = /^\d+$/.test(text) ? Number(text) : START[key]
    else place[key] = text
  }
  if (!query.has('view')) place.view = viewOf(place as unknown as Place)
  if (!FACES.includes(place.face as Face)) place.face = START.face
  if (!COLOURINGS.includes(place.colour as Colouring)) place.colour = START.colour
  if (!AXES.includes(place.axis as Axis)) place.axis = START.axis
  return place as unknown as Place
}

export const place = new Store<Place>(fromHash(typeof location === 'undefined' ? '' : location.hash))

export function usePlace(): Place {
  return useStore(place)
}

/** Go there; the address says so too. */
export function go(changes: Partial<Place>, { replace = false } = {}): void {
  const before = place.value
  const after = { ...before, ...changes }
  const address = toHash(after)
  if (address === toHash(before)) return
  const step = !replace && STEPS.some((key) => before[key] !== after[key])
  history[step ? 'pushState' : 'replaceState'](null, '', address)
  place.set(after)
}

/** Open an episode at its beginning, or at one of its places. */
export function openEpisode(id: string, changes: Partial<Place> = {}, options: { replace?: boolean } = {}): void {
  go({ view: 'episodes', id, timeline: 0, node: -1, token: -1, with_run: '', with: '', with_timeline: 0, ...changes }, options)
}

/** Open a run; what was chosen in another one is forgotten. */
export function openRun(run: string, changes: Partial<Place> = {}): void {
  const { view, axis, face, colour } = place.value
  go({ ...START, view: view === 'runs' ? 'overview' : view, axis, face, colour, run, ...changes })
}

export function followAddress(): void {
  addEventListener('popstate', () => place.set(fromHash(location.hash)))
  addEventListener('hashchange', () => {
    const there = fromHash(location.hash)
    if (toHash(there) !== toHash(place.value)) place.set(there)
  })
}

export function filterOf({ ...all }: Place): EpisodeFilter {
  return Object.fromEntries(Object.keys(NO_FILTER).map((key) => [key, all[key as keyof EpisodeFilter]])) as unknown as EpisodeFilter
}

/** Times in seconds; a day begins where the reader is. */
export function sessionFilterOf({ said, model, client, user, opinion, since, until, sessions }: Place): SessionFilter {
  return { text: said, model, client, user, opinion, since: midnight(since, 0), until: midnight(until, 1), order: sessions }
}

function midnight(day: string, later: number): string {
  const [year, month, date] = day.split('-').map(Number)
  const time = new Date(year ?? NaN, (month ?? NaN) - 1, (date ?? NaN) + later).getTime()
  return Number.isNaN(time) ? '' : String(time / 1000)
}
