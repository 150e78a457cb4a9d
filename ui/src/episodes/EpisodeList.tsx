/** The middle pane: the episodes that a filter leaves, however many. */

import { useEffect, useRef, useState } from 'preact/hooks'

import { ForkMark } from '../common/ForkMark'
import { Name } from '../common/Name'
import { Empty, Failure, Loading } from '../common/Notice'
import { EpisodeOutcome } from '../common/Status'
import { Tabs } from '../common/Tabs'
import type { EpisodeRow, Run } from '../data/types'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { useCommands } from '../state/commands'
import { filterOf, go, NO_FILTER, openEpisode, usePlace } from '../state/place'
import { useSource } from '../state/source'
import { brief, duration, integer, number, seconds, signed } from '../text/format'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import { Filters } from './Filters'
import { useRows, type Rows } from './pages'
import { TaskList } from './TaskList'

const ROW = 62
/** Of the table, which has the room of the whole page while no episode is open. */
const WIDE_ROW = 50
const ROW_WITH_SNIPPET = 104
/** Characters before a match. */
const BEFORE = 40

interface Props {
  run: Run | null
  /** Grows when something was written to the run's episodes. */
  written: number
}

export function EpisodeList({ run, written }: Props) {
  const source = useSource()
  const place = usePlace()
  const filter = filterOf(place)
  const key = `${place.run} ${JSON.stringify(filter)}`
  const rows = useRows(key, (offset, limit) => source.episodes(place.run ?? '', filter, offset, limit))
  const list = useRef<ListHandle>(null)
  const isWide = useRoom() && place.id === ''
  const isFiltered = Object.keys(NO_FILTER).some((name) => filter[name as keyof typeof filter] !== '')

  useEffect(() => {
    if (written > 0) rows.again()
  }, [written])
  const step = useStep(rows, place.id, list)
  useCommands({ j: () => step(1), k: () => step(-1) })

  return (
    <section class={`pane episode-pane ${isWide ? 'wide' : ''} ${run && run.agents.length < 2 ? 'one-agent' : ''}`} aria-label={t('episodes')}>
      <div class="episode-heading">
        <h2 class="pane-title">
          {t('episodes')} <span class="count">{rows.total === null ? '' : integer(rows.total)}</span>
        </h2>
        {source.served && (
          <Tabs
            label={t('list_of')}
            value={place.list}
            tabs={[
              ['', t('each_episode')],
              ['tasks', t('by_task')],
            ]}
            onChange={(value) => go({ list: value }, { replace: true })}
          />
        )}
      </div>
      <Filters run={run} written={written} isOpen={isWide} />
      {place.list === 'tasks' ? (
        <TaskList run={run} written={written} />
      ) : rows.error ? (
        <Failure error={rows.error} again={rows.again} />
      ) : rows.total === null ? (
        <Loading />
      ) : rows.total === 0 ? (
        <NoEpisodes filtered={isFiltered} served={source.served} />
      ) : (
        <>
          {isWide && <Headings />}
          <VirtualList
            label={t('episodes')}
            length={rows.total}
            height={() => (filter.text ? ROW_WITH_SNIPPET : isWide ? WIDE_ROW : ROW)}
            identity={`${key} ${isWide}`}
            handle={list}
            onWindow={rows.need}
            render={(index) => {
              const row = rows.row(index)
              return <Row key={index} row={row} here={row?.episode_id === place.id} tall={filter.text !== ''} isWide={isWide && filter.text === ''} />
            }}
          />
        </>
      )}
    </section>
  )
}

function NoEpisodes({ filtered, served }: { filtered: boolean; served: boolean }) {
  if (!served) return <Empty title={t('not_in_report')} hint={t('not_in_report_hint')} />
  return <Empty title={t(filtered ? 'no_match' : 'no_episodes')} hint={t(filtered ? 'no_match_hint' : 'no_episodes_hint')} />
}

/** Titles of the table's columns, with their units; a click sorts. */
function Headings() {
  const { sort, order } = usePlace()
  return (
    <div class="wide-row wide-headings">
      {COLUMNS.map(([key, word, unit]) => {
        const isHere = sort === key
        const next = isHere && order !== 'desc' ? 'desc' : ''
        return (
          <button key={key} class={`quiet ${isHere ? 'here' : ''}`} title={t('sort_by', { column: t(word) })} onClick={() => go({ sort: key, order: isHere ? next : '' }, { replace: true })}>
            {t(word)}
            {unit && <span class="unit">{t(unit)}</span>}
            {isHere && <span aria-hidden="true">{order === 'desc' ? '↓' : '↑'}</span>}
          </button>
        )
      })}
    </div>
  )
}

const COLUMNS: [sort: string, word: Word, unit?: Word][] = [
  ['task', 'question'],
  ['step', 'step'],
  ['status', 'status'],
  ['reward', 'reward'],
  ['agent', 'agent'],
  ['n_tokens', 'length', 'unit_tokens'],
  ['n_turns', 'turns'],
  ['seconds', 'seconds', 'unit_seconds'],
]

function WideCells({ row }: { row: EpisodeRow }) {
  return (
    <>
      <span class="task-asked">
        <span class="question">{row.question || row.task_id}</span>
        <span class="faint task-id">
          <Name text={row.task_id} /> #{row.repeat}
        </span>
      </span>
      <span>
        {row.step} <span class={`split split-${row.split}`}>{t(row.split)}</span>
      </span>
      <span>
        <EpisodeOutcome status={row.status} />
        {row.error_type !== null && <span class="warn error-name">{row.error_type}</span>}
      </span>
      <span class="number">
        <b>{number(row.reward)}</b>
        {row.advantage !== null && <span class="faint below">A {signed(row.advantage)}</span>}
      </span>
      <span class="faint cut">{row.agents.join(', ')}</span>
      <span class="number">{integer(row.n_tokens)}</span>
      <span class="number">{integer(row.n_turns)}</span>
      <span class="number">{seconds(row.seconds)}</span>
    </>
  )
}

/** Whether the window is wide enough for the table. */
function useRoom(): boolean {
  const [has, set] = useState(() => matchMedia(ROOM).matches)
  useEffect(() => {
    const query = matchMedia(ROOM)
    const update = (): void => set(query.matches)
    query.addEventListener('change', update)
    return () => query.removeEventListener('change', update)
  }, [])
  return has
}

const ROOM = '(min-width: 1000px)'

interface RowProps {
  row: EpisodeRow | null
  here: boolean
  tall: boolean
  isWide: boolean
}

function Row({ row, here, tall, isWide }: RowProps) {
  const size = tall ? 'episode-row tall' : isWide ? 'episode-row low' : 'episode-row'
  if (row === null) return <div class={`${size} pending`} role="listitem" aria-busy="true" />
  return (
    <div role="listitem" class={`${size} ${here ? 'here' : ''}`}>
      <button class={isWide ? 'wide-row' : ''} aria-current={here ? 'true' : undefined} onClick={() => openEpisode(row.episode_id)} data-episode={row.episode_id}>
        {isWide ? <WideCells row={row} /> : <Lines row={row} />}
        {row.snippet && (
          <span class="episode-snippet">
            {before(row.snippet.before)}
            <mark>{row.snippet.match}</mark>
            {row.snippet.after}
          </span>
        )}
      </button>
    </div>
  )
}

/** The same in the narrow list beside an episode. */
function Lines({ row }: { row: EpisodeRow }) {
  return (
    <>
      <span class="episode-line">
        {row.question ? (
          <span class="question" title={brief(row.question, 300)}>
            {row.question}
          </span>
        ) : (
          <Name text={row.task_id} />
        )}
        <span class="faint">#{row.repeat}</span>
        <EpisodeOutcome status={row.status} />
        <span class="episode-reward" title={t('reward')}>
          {number(row.reward)}
        </span>
      </span>
      <span class="episode-line faint">
          <span class={`split split-${row.split}`}>
            {t(row.split)} {row.step}
          </span>
          <span>{t('n_tokens', { n: integer(row.n_tokens) })}</span>
          <span>{t('n_turns', { n: row.n_turns })}</span>
          {(row.n_branches ?? 1) > 1 && (
            <span title={t('branches')}>
              <ForkMark /> {row.n_branches}
            </span>
          )}
          {row.advantage !== null && <span title={t('advantage')}>A {signed(row.advantage)}</span>}
          {row.error_type !== null && <span class="warn">{row.error_type}</span>}
          <span class="end">{duration(row.seconds)}</span>
        </span>
    </>
  )
}

/** Opens the next or the previous episode of the list as it is sorted and filtered, once its row is there. */
function useStep(rows: Rows<EpisodeRow>, id: string, list: { current: ListHandle | null }): (by: 1 | -1) => void {
  const at = useRef({ id: '', index: -1 })
  const awaited = useRef<{ rows: Rows<EpisodeRow>; index: number; id: string } | null>(null)
  const open = (index: number, row: EpisodeRow): void => {
    awaited.current = null
    at.current = { id: row.episode_id, index }
    openEpisode(row.episode_id, {}, { replace: id !== '' })
  }
  useEffect(() => {
    if (awaited.current?.rows !== rows || awaited.current.id !== id) awaited.current = null
    const row = awaited.current && rows.row(awaited.current.index)
    if (awaited.current && row) return open(awaited.current.index, row)
    if (!isStillAt(rows, id, at.current)) at.current = { id, index: indexOf(rows, id) }
  })
  return (by) => {
    const total = rows.total ?? 0
    if (total === 0) return
    const from = awaited.current?.index ?? at.current.index
    const to = Math.max(0, Math.min(from < 0 ? (by > 0 ? 0 : total - 1) : from + by, total - 1))
    list.current?.scrollTo(to, 'nearest')
    const row = rows.row(to)
    if (row) open(to, row)
    else awaited.current = { rows, index: to, id }
  }
}

/** Also where its row is not in the page now. */
function isStillAt(rows: Rows<EpisodeRow>, id: string, at: { id: string; index: number }): boolean {
  if (at.id !== id || at.index < 0 || at.index >= (rows.total ?? 0)) return false
  const row = rows.row(at.index)
  return row === null || row.episode_id === id
}

function indexOf(rows: Rows<EpisodeRow>, id: string): number {
  if (id === '') return -1
  for (let index = 0; index < (rows.total ?? 0); index++) if (rows.row(index)?.episode_id === id) return index
  return -1
}

/** So much of the text before a match that the match itself stays in sight. */
function before(text: string): string {
  return text.length > BEFORE ? `…${text.slice(-BEFORE)}` : text
}
