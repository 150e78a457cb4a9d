/** The server's API. A token in the page's address is kept for this tab and taken off the address. */

import { keep, kept, sessionStore } from '../state/kept'
import { linesOf } from './lines'
import { SourceError, type Live, type Recorded, type Source, type TasksAsked } from './source'
import type { Episode, EpisodeFilter, EpisodePage, Facets, MetricColumns, MetricsLine, Open, Outcome, Revision, Run, RunInfo, RunMetrics, RunNotes, SessionAnswer, SessionCounts, SessionFilter, SessionPage, TaskPage, Tokens } from './types'

const KEY = 'astune-token'

type Parameters = [string, string | number][]

export class Server implements Source {
  readonly served = true
  holds = () => true
  private readonly token = takeToken()
  private readonly prepared = new Map<string, Promise<RunMetrics | null>>()

  open = () => this.get<Open>('open', [])
  runs = () => this.get<RunInfo[]>('runs', [])
  run = (run: string) => this.get<Run>('run', [['run', run]])
  outcome = (run: string) => this.get<Outcome>('outcome', [['run', run]])
  episode = (run: string, id: string) => this.get<Episode>('episode', [['run', run], ['id', id]])
  revision = (run: string, id: string) => this.get<Revision>('revision', [['run', run], ['id', id]])
  /** Each answer is given once. Lines that came since then are sent to listeners of a running run. */
  async metrics(runs: string[], only: string[]): Promise<RunMetrics[]> {
    const prepared = runs.flatMap((run) => this.prepared.get(keyOf(run, only)) ?? [])
    this.prepared.clear()
    if (runs.length > 0 && prepared.length === runs.length) {
      const found = await Promise.all(prepared)
      if (found.every((one) => one !== null)) return found
    }
    return this.measured(runs, only)
  }

  prepare(run: string, only: string[]): void {
    const answer = this.measured([run], only).then(
      ([found]) => found ?? null,
      () => null,
    )
    this.prepared.set(keyOf(run, only), answer)
  }

  private async measured(runs: string[], only: string[]): Promise<RunMetrics[]> {
    const asked = runs.map((run): [string, string] => ['run', run])
    if (only.length === 0) return this.get('metrics', asked)
    const found = await this.get<MetricColumns[]>('metrics', [...asked, ...only.map((name): [string, string] => ['name', name])])
    return found.map(linesOf)
  }

  tokens = (run: string, id: string, timeline: number) =>
    this.get<Tokens>('tokens', [['run', run], ['id', id], ['timeline', timeline]])

  episodes(run: string, filter: EpisodeFilter, offset: number, limit: number): Promise<EpisodePage> {
    return this.get('episodes', [['run', run], ...given(filter), ['offset', offset], ['limit', limit]])
  }

  facets = (run: string, filter: EpisodeFilter) => this.get<Facets>('facets', [['run', run], ...given({ ...filter, sort: '', order: '' })])

  tasks(run: string, filter: EpisodeFilter, asked: TasksAsked, offset: number, limit: number): Promise<TaskPage> {
    const parameters = [...given({ ...filter, sort: '', order: '' }), ...Object.entries(asked).filter(([, value]) => value !== '')]
    return this.get('tasks', [['run', run], ...parameters, ['offset', offset], ['limit', limit]])
  }

  conversations = (filter: SessionFilter, offset: number, limit: number) =>
    this.get<SessionPage>('conversations', [...given(filter), ['offset', offset], ['limit', limit]])
  conversationCounts = () => this.get<SessionCounts>('conversation_counts', [])
  conversation = (key: string) => this.get<SessionAnswer[]>('conversation', [['id', key]])

  note = (run: string, notes: RunNotes) =>
    this.get<RunNotes>('notes', [['run', run]], { method: 'POST', body: JSON.stringify(notes), headers: { 'Content-Type': 'application/json' } })

  reportAddress(run: string, ids: string[]): string {
    return this.address('report', [['run', run], ...ids.map((id): [string, string] => ['id', id]), ...this.credentials()])
  }

  turnAddress(run: string): string {
    return this.address('turn', [['run', run], ...this.credentials()])
  }

  /** One stream for everything, for a browser opens six connections for all tabs; none while nobody sees the page. */
  listen(runs: string[], live: Live): () => void {
    let source: EventSource | null = null
    const follow = (): void => {
      source?.close()
      source = document.hidden ? null : this.events(runs, live)
    }
    follow()
    document.addEventListener('visibilitychange', follow)
    return () => {
      document.removeEventListener('visibilitychange', follow)
      source?.close()
    }
  }

  private events(runs: string[], live: Live): EventSource {
    const parameters = runs.map((run): [string, string] => ['run', run])
    const source = new EventSource(this.address('events', [...parameters, ...this.credentials()]))
    const on = <T>(name: string, handle: (data: T) => void): void =>
      source.addEventListener(name, (event) => handle(JSON.parse((event as MessageEvent<string>).data) as T))
    on('runs', () => live.onRuns())
    on('talk', () => live.onTalk())
    on('status', () => live.onStatus())
    on<{ run: string } & Recorded>('episodes', ({ run, ...recorded }) => live.onEpisodes(run, recorded))
    on<MetricsLine & { run: string }>('metrics', ({ run, ...line }) => live.onLine(run, line))
    return source
  }

  private credentials(): Parameters {
    return this.token ? [['token', this.token]] : []
  }

  private address(name: string, parameters: Parameters): string {
    const query = new URLSearchParams(parameters.map(([key, value]) => [key, String(value)])).toString()
    return `/api/${name}${query ? `?${query}` : ''}`
  }

  private async get<T>(name: string, parameters: Parameters, request: RequestInit = {}): Promise<T> {
    const headers: HeadersInit = { ...request.headers, ...(this.token ? { Authorization: `Bearer ${this.token}` } : {}) }
    let answer: Response
    try {
      answer = await fetch(this.address(name, parameters), { ...request, headers })
    } catch {
      throw new SourceError('The viewer does not answer.', 'Is `astune view` still running?')
    }
    const body: unknown = await answer.json().catch(() => null)
    if (!answer.ok) {
      const { error, hint } = (body ?? {}) as { error?: string; hint?: string }
      throw new SourceError(error ?? `${answer.status} ${answer.statusText}`, hint ?? '')
    }
    return body as T
  }
}

function keyOf(run: string, only: string[]): string {
  return JSON.stringify([run, ...only])
}

function given(filter: EpisodeFilter | SessionFilter): Parameters {
  return Object.entries(filter).filter(([, value]) => value !== '')
}

function takeToken(): string | null {
  const given = new URLSearchParams(location.search).get('token')
  if (given === null) return kept(KEY, sessionStore)
  keep(KEY, given, sessionStore)
  history.replaceState(null, '', location.pathname + location.hash)
  return given
}
