/** A report's own data: what the server would answer about the episodes that were chosen. */

import { searchedText } from '../text/content'
import { SourceError, type Source } from './source'
import type { EpisodeFilter, EpisodePage, EpisodeRow, Episode, Report, Revision, RunNotes, Snippet, TaskPage, Tokens } from './types'

const ELEMENT = 'astune-report'
const AROUND = 60

export class Embedded implements Source {
  readonly served = false

  constructor(private readonly report: Report) {}

  open = async () => this.report.open
  runs = async () => this.report.runs
  run = async () => this.report.run
  outcome = async () => this.report.outcome
  metrics = async () => this.report.metrics
  prepare = () => undefined
  reportAddress = () => null
  turnAddress = () => null
  facets = async () => null
  tasks = async (): Promise<TaskPage> => ({ total: 0, rows: [] })
  conversations = async () => ({ total: 0, rows: [] })
  conversationCounts = async () => ({ model: [], client: [], opinion: [] })
  conversation = async () => []
  note = async (): Promise<RunNotes> => this.report.run.info.notes
  listen = () => () => undefined

  holds = (id: string) => id in this.report.episodes

  async episode(_run: string, id: string): Promise<Episode> {
    return found(this.report.episodes[id], id)
  }

  async revision(run: string, id: string): Promise<Revision> {
    const { revision } = await this.episode(run, id)
    return { episode: revision, tokens: this.report.tokens[id]?.[0]?.revision ?? '' }
  }

  async tokens(_run: string, id: string, timeline: number): Promise<Tokens> {
    return found(this.report.tokens[id]?.[timeline], id)
  }

  async episodes(_run: string, filter: EpisodeFilter, offset: number, limit: number): Promise<EpisodePage> {
    const rows = this.report.rows
      .filter((row) => matches(row, filter))
      .map((row) => ({ ...row, snippet: filter.text ? this.snippet(row, filter.text) : null }))
      .filter((row) => !filter.text || row.snippet !== null)
    return { total: rows.length, rows: sorted(rows, filter).slice(offset, offset + limit) }
  }

  private snippet(row: EpisodeRow, text: string): Snippet | null {
    for (const message of this.report.episodes[row.episode_id]?.messages ?? []) {
      const whole = searchedText(message)
      const at = whole.toLowerCase().indexOf(text.toLowerCase())
      if (at >= 0) {
        return {
          before: whole.slice(Math.max(0, at - AROUND), at),
          match: whole.slice(at, at + text.length),
          after: whole.slice(at + text.length, at + text.length + AROUND),
        }
      }
    }
    return null
  }
}

/** The report that this page holds; null where a server is behind it. */
export function embeddedReport(): Report | null {
  const text = document.getElementById(ELEMENT)?.textContent
  return text ? (JSON.parse(text) as Report) : null
}

export function matches(row: EpisodeRow, filter: EpisodeFilter): boolean {
  const { success } = filter
  return (
    same(filter.split, row.split) &&
    same(filter.step, String(row.step)) &&
    same(filter.status, row.status) &&
    same(filter.error_type, row.error_type ?? '') &&
    same(filter.task_id, row.task_id) &&
    row.task_id.toLowerCase().includes(filter.task.toLowerCase()) &&
    (filter.agent === '' || row.agents.includes(filter.agent)) &&
    (success === '' || row.success === (success === 'true')) &&
    between(row.reward, filter.min_reward, filter.max_reward) &&
    between(row.n_tokens, filter.min_tokens, filter.max_tokens) &&
    between(row.n_branches, filter.min_branches, '')
  )
}

/** By the filter's column; what has no value comes last in either order. */
export function sorted(rows: EpisodeRow[], filter: EpisodeFilter): EpisodeRow[] {
  const key = SORTED_BY[filter.sort] ?? SORTED_BY.seq!
  const sign = filter.order === 'desc' ? -1 : 1
  return rows.toSorted((one, other) => {
    const [a, b] = [key(one), key(other)]
    if (a === null || b === null) return Number(a === null) - Number(b === null) || one.seq - other.seq
    return a < b ? -sign : a > b ? sign : one.seq - other.seq
  })
}

const SORTED_BY: { [sort: string]: (row: EpisodeRow) => number | string | null } = {
  seq: (row) => row.seq,
  step: (row) => row.step,
  task: (row) => row.task_id,
  reward: (row) => row.reward,
  success: (row) => (row.success === null ? null : Number(row.success)),
  status: (row) => row.status,
  error_type: (row) => row.error_type,
  agent: (row) => row.agents[0] ?? null,
  seconds: (row) => row.seconds,
  n_tokens: (row) => row.n_tokens,
  n_sampled: (row) => row.n_sampled,
  n_trained: (row) => row.n_trained,
  n_turns: (row) => row.n_turns,
  branches: (row) => row.n_branches,
}

function same(wanted: string, value: string): boolean {
  return wanted === '' || wanted === value
}

function between(value: number | null, least: string, greatest: string): boolean {
  if (least === '' && greatest === '') return true
  return value !== null && (least === '' || value >= Number(least)) && (greatest === '' || value <= Number(greatest))
}

function found<T>(value: T | undefined, id: string): T {
  if (value === undefined) throw new SourceError(`${id} is not in this report.`, 'Open the run with `astune view`.')
  return value
}
