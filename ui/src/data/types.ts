/** What the server answers, field by field. Numbers that JSON cannot hold arrive as null. */

export type Status = 'running' | 'finished' | 'failed' | 'interrupted' | 'killed'
export type EpisodeStatus = 'success' | 'failed' | 'truncated' | 'error'
export type Split = 'train' | 'validation'
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

export interface Open {
  root: string
  level: 'record' | 'experiment' | 'run'
  version: string
  catalogue: Metric[]
  /** The file of a served model's conversations; null where there is none. */
  conversations: string | null
}

/** An entry of the catalogue of metrics; `<part>` in a name stands for any text. */
export interface Metric {
  name: string
  title: string
  title_zh: string
  unit: string
  group: string
  meaning: string
  meaning_zh: string
}

export interface RunInfo {
  run: string
  experiment: string
  name: string
  created_at: number | null
  ended_at: number | null
  status: Status
  message: string
  backbone: string | null
  model: string | null
  steps: number | null
  /** Seconds at work up to the newest step of training, as charts by time have them. */
  elapsed_s: number | null
  episodes: number | null
  reward: number | null
  seed: number | null
  /** Success on the held-out tasks; null where nothing was measured. */
  held_out: { first: number; best: number; best_step: number; last: number; last_step: number } | null
  /** The settings in which it differs from other runs of the list. */
  settings: { [key: string]: string } | null
  notes: RunNotes
  problems: string[]
}

/** What people say of a run. */
export interface RunNotes {
  tags: string[]
  note: string
  archived: boolean
}

export interface StepRow {
  split: Split
  step: number
  episodes: number
  errors: number
  tasks: number
  successes: number
  reward: number | null
  answer_tokens: number | null
  turns: number | null
  /** Ends of the 95 % interval of success. */
  interval: [low: number, high: number]
}

/** The held-out tasks with the weights of one step; `low` and `high` end the 95 % interval of `success`. */
export interface Measured extends Omit<StepRow, 'interval'> {
  success: number
  low: number
  high: number
}

export interface RunWarning {
  kind: 'mismatch' | 'jump' | 'dropped' | 'failed'
  metric: string
  step: number | null
  /** null where what was measured is no number. */
  value: number | null
  before: number | null
}

export interface Highlight {
  kind: 'solved' | 'broken' | 'surprising'
  row: EpisodeRow
  /** The episode of the same task in the first measurement. */
  before: string | null
  question: string
  answer: string
}

/** What a run came to. */
export interface Outcome {
  before: Measured | null
  after: Measured | null
  measurements: number
  trained: { steps: number; tasks: number; episodes: number; seconds: number | null; elapsed_s: number | null }
  balance: { sampled: number; trained: number; masked: { [reason: string]: number }; dropped: { [reason: string]: number } }
  warnings: RunWarning[]
  episodes: Highlight[]
}

export interface ErrorCount {
  split: Split
  step: number
  error_type: string
  count: number
}

export interface Run {
  run: string
  info: RunInfo
  config: string
  /** The settings that are not at their defaults; null for one that has none. */
  changed: [key: string, value: string, otherwise: string | null][]
  steps: StepRow[]
  agents: string[]
  errors: ErrorCount[]
  problems: string[]
  vocabulary: boolean
  /** Whether it was the training of a turn of the flywheel that came to its end. */
  turn: boolean
  /** Those that it trains, where these are several. */
  policies: string[]
}

export interface Snippet {
  before: string
  match: string
  after: string
}

export interface EpisodeRow {
  seq: number
  episode_id: string
  split: Split
  step: number
  task_id: string
  repeat: number
  attempt: number
  status: EpisodeStatus
  reward: number | null
  success: boolean | null
  error_type: string | null
  error_text: string | null
  n_tokens: number
  n_sampled: number
  n_trained: number
  n_turns: number
  /** Timelines; 1 where nothing branched, null in a store of an older version. */
  n_branches: number | null
  agents: string[]
  seconds: number | null
  created_at: number
  advantage: number | null
  not_trained: string | null
  snippet: Snippet | null
  /** What it was asked, on one line and cut. */
  question: string
}

export interface EpisodePage {
  total: number
  rows: EpisodeRow[]
}

type Counts = [value: string, count: number][]
export type Bin = [low: number, high: number, count: number]

/** How many episodes have each value, under all filters but the value's own. */
export interface Facets {
  split: Counts
  status: Counts
  error_type: Counts
  agent: Counts
  policy: Counts
  reward: Bin[]
  n_tokens: Bin[]
}

export type Turned = 'solved' | 'broken'

/** A task's success from step to step. `newest` is its last episode. */
export interface TaskRow {
  task_id: string
  steps: [step: number, episodes: number, successes: number][]
  turned: Turned | null
  newest: string
  split: Split
  question: string
}

export interface TaskPage {
  total: number
  rows: TaskRow[]
}

export interface Message {
  node: number
  parent: number | null
  role: string
  agent: string
  name: string | null
  content: Json
  reasoning: string | null
  tool_calls: Json[]
  tool_call_id: string | null
  tools: Json[]
  images: Json[]
  malformed_calls: string[]
  sampled: boolean
  trainable: boolean
  finish_reason: string | null
  weights_version: number | null
  fork_cause: string | null
  constraint: string | null
  n_tokens: number
  n_sampled: number
  logprob_sum: number | null
  advantage: number | null
  raw: string | null
  /** What a search looks through beside the reasoning; null where it is the content as it stands. */
  searched: string | null
}

export interface TimelineInfo {
  agent: string
  target: string
  /** The policy that answers for it; null in a run of one. */
  policy: string | null
  leaf: number
  path: number[]
  n_tokens: number
  n_trained: number
}

export interface GroupMember {
  episode_id: string
  repeat: number
  reward: number | null
  status: EpisodeStatus
  advantage: number | null
}

export interface Episode {
  revision: string
  row: EpisodeRow
  task: { [key: string]: Json }
  /** The answer that the task's judge compares with; null where the task has none. */
  reference: Json
  reward: { [key: string]: Json } | null
  error: string | null
  timings: { [key: string]: number | null }
  metrics: { [key: string]: number | null }
  judge_inputs: Json
  messages: Message[]
  timelines: TimelineInfo[]
  group: GroupMember[]
}

export interface Span {
  start: number
  end: number
  node: number
  role: string
  agent: string
  sampled: boolean
  mask_reason: string | null
  weights_version: number | null
}

/** An answer that has another one is no longer what the run holds. */
export interface Revision {
  episode: string
  tokens: string
}

export interface Tokens {
  revision: string
  length: number
  ids: number[]
  texts: { [id: string]: string }
  bytes: { [id: string]: string }
  characters: [number, number, string][]
  spans: Span[]
  loss: [number, number][]
  logprobs: (number | null)[]
  trainer_logprobs: (number | null)[] | null
  advantages: (number | null)[] | null
  grammar: boolean[]
}

export interface MetricsLine {
  step: number
  kind: Split
  time: number
  elapsed_s: number
  metrics: { [name: string]: number | null }
}

export interface RunMetrics {
  run: string
  lines: MetricsLine[]
  /** All metrics that the run has, where lines have only some of them. */
  names?: string[]
}

/** Measurements by metric, as the server answers where some are named. */
export interface MetricColumns {
  run: string
  names: string[]
  at: [step: number, kind: Split, time: number, elapsed_s: number][]
  /** `of` are the numbers of the lines that have the metric; null for all of them. */
  columns: { [name: string]: { of: number[] | null; values: (number | null)[] } }
}

/** What episodes are asked for; an empty field does not restrict. */
export interface EpisodeFilter {
  split: string
  step: string
  task: string
  status: string
  agent: string
  policy: string
  error_type: string
  /** The whole id; `task` is a part of it. */
  task_id: string
  min_reward: string
  max_reward: string
  success: string
  min_branches: string
  min_tokens: string
  max_tokens: string
  text: string
  sort: string
  order: string
}

export interface Report {
  open: Open
  runs: RunInfo[]
  run: Run
  outcome: Outcome
  metrics: RunMetrics[]
  rows: EpisodeRow[]
  episodes: { [id: string]: Episode }
  tokens: { [id: string]: Tokens[] }
}

/** What sessions are asked for; an empty field does not restrict. Times in seconds. */
export interface SessionFilter {
  text: string
  model: string
  client: string
  user: string
  opinion: string
  since: string
  until: string
  order: string
}

export type Opinion = 'liked' | 'disliked' | 'corrected' | 'commented' | 'implicit'

export interface SessionRow {
  key: string
  answers: number
  begun: number
  ended: number
  models: string[]
  user: string
  client: string
  source: string
  /** How many there are of each kind. */
  opinions: { [kind in Opinion]?: number }
  question: string
  snippet: Snippet | null
}

export interface SessionPage {
  total: number
  rows: SessionRow[]
}

export interface SessionCounts {
  model: Counts
  client: Counts
  opinion: Counts
}

export interface SessionAnswer {
  interaction_id: string
  created_at: number
  model: string
  source: string
  tools: Json[]
  prompt_tokens: number | null
  completion_tokens: number | null
  /** Those since the answer before, the answer last, as OpenAI's API has them. */
  messages: StoredMessage[]
  /** How many messages the conversation had before that this one has not. */
  left: number
  ratings: Rating[]
}

export interface StoredMessage {
  role?: string
  content?: Json
  name?: string
  reasoning_content?: string
  tool_calls?: Json[] | null
}

export interface Rating {
  rating: number | null
  comment: string
  corrected_answer: string | null
  user: string
  kind: string
  weight: number
  created_at: number
}
