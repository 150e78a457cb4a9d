/** Where the page's data comes from: a server, or the report that the page itself holds. */

import type { Episode, EpisodeFilter, EpisodePage, Facets, MetricsLine, Open, Outcome, Revision, Run, RunInfo, RunMetrics, RunNotes, SessionAnswer, SessionCounts, SessionFilter, SessionPage, TaskPage, Tokens } from './types'

/** How many episodes there are, and the number of the newest: another one where episodes were added or taken back. */
export interface Recorded {
  total: number
  last: number
}

export interface Live {
  /** A run was added, or what a list of runs shows of one is another. */
  onRuns: () => void
  /** A run began or ended, or we have just begun to listen to it and may have missed something. */
  onStatus: () => void
  /** Something was written to a run's episodes. */
  onEpisodes: (run: string, recorded: Recorded) => void
  onLine: (run: string, line: MetricsLine) => void
  /** Something was written to the conversations of a served model. */
  onTalk: () => void
}

export interface TasksAsked {
  by: string
  order: string
  turned: string
}

export interface Source {
  /** False where nothing can change and nothing beyond the report can be asked for. */
  readonly served: boolean
  open(): Promise<Open>
  runs(): Promise<RunInfo[]>
  run(run: string): Promise<Run>
  outcome(run: string): Promise<Outcome>
  episodes(run: string, filter: EpisodeFilter, offset: number, limit: number): Promise<EpisodePage>
  /** Null where episodes are too few to be counted: a report's. */
  facets(run: string, filter: EpisodeFilter): Promise<Facets | null>
  /** Tasks by `by`, of those that turned where `turned` says so. */
  tasks(run: string, filter: EpisodeFilter, asked: TasksAsked, offset: number, limit: number): Promise<TaskPage>
  conversations(filter: SessionFilter, offset: number, limit: number): Promise<SessionPage>
  conversationCounts(): Promise<SessionCounts>
  conversation(key: string): Promise<SessionAnswer[]>
  note(run: string, notes: RunNotes): Promise<RunNotes>
  episode(run: string, id: string): Promise<Episode>
  /** Of an episode, at little cost. */
  revision(run: string, id: string): Promise<Revision>
  /** Whether an episode of the run can be asked for. */
  holds(id: string): boolean
  tokens(run: string, id: string, timeline: number): Promise<Tokens>
  /** Only the metrics that are named, where some are; `time/*` names all that begin so. */
  metrics(runs: string[], only: string[]): Promise<RunMetrics[]>
  /** Asks now for what `metrics` will be asked for: of several runs, the answer is there when all of them are chosen. */
  prepare(run: string, only: string[]): void
  /** The address of a report of these episodes; null where none can be made. */
  reportAddress(run: string, ids: string[]): string | null
  /** The address of the page of the flywheel's turn that the run belongs to; null where it cannot be asked for. */
  turnAddress(run: string): string | null
  /** Calls back while runs go on; returns what ends it. */
  listen(runs: string[], live: Live): () => void
}

/** An answer that says what is wrong and what to do about it. */
export class SourceError extends Error {
  constructor(
    message: string,
    readonly hint: string,
  ) {
    super(message)
  }
}
