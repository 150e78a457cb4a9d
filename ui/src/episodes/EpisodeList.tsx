/** The middle pane: the episodes that a filter leaves, however many. */

import { useEffect, useRef } from 'preact/hooks'

import { ForkMark } from '../common/ForkMark'
import { Name } from '../common/Name'
import { Empty, Failure, Loading } from '../common/Notice'
import { EpisodeOutcome } from '../common/Status'
import type { EpisodeRow, Run } from '../data/types'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { useCommands } from '../state/commands'
import { filterOf, NO_FILTER, openEpisode, usePlace } from '../state/place'
import { useSource } from '../state/source'
import { duration, integer, number, signed } from '../text/format'
import { t } from '../text/translate'
import { Filters } from './Filters'
import { useRows, type Rows } from './pages'

const ROW = 62
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
  const isFiltered = Object.keys(NO_FILTER).some((name) => filter[name as keyof typeof filter] !== '')

  useEffect(() => {
    if (written > 0) rows.again()
  }, [written])
  const step = useStep(rows, place.id, list)
  useCommands({ j: () => step(1), k: () => step(-1) })

  return (
    <section class="pane episode-pane" aria-label={t('episodes')}>
      <h2 class="pane-title">
        {t('episodes')} <span class="count">{rows.total === null ? '' : integer(rows.total)}</span>
      </h2>
      <Filters run={run} />
      {rows.error ? (
        <Failure error={rows.error} again={rows.again} />
      ) : rows.total === null ? (
        <Loading />
      ) : rows.total === 0 ? (
        <NoEpisodes filtered={isFiltered} served={source.served} />
      ) : (
        <VirtualList
          label={t('episodes')}
          length={rows.total}
          height={() => (filter.text ? ROW_WITH_SNIPPET : ROW)}
          identity={key}
          handle={list}
          onWindow={rows.need}
          render={(index) => <Row key={index} row={rows.row(index)} here={rows.row(index)?.episode_id === place.id} tall={filter.text !== ''} />}
        />
      )}
    </section>
  )
}

function NoEpisodes({ filtered, served }: { filtered: boolean; served: boolean }) {
  if (!served) return <Empty title={t('not_in_report')} hint={t('not_in_report_hint')} />
  return <Empty title={t(filtered ? 'no_match' : 'no_episodes')} hint={t(filtered ? 'no_match_hint' : 'no_episodes_hint')} />
}

function Row({ row, here, tall }: { row: EpisodeRow | null; here: boolean; tall: boolean }) {
  const size = tall ? 'episode-row tall' : 'episode-row'
  if (row === null) return <div class={`${size} pending`} role="listitem" aria-busy="true" />
  return (
    <div role="listitem" class={`${size} ${here ? 'here' : ''}`}>
      <button aria-current={here ? 'true' : undefined} onClick={() => openEpisode(row.episode_id)} data-episode={row.episode_id}>
        <span class="episode-line">
          <Name text={row.task_id} />
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

/** Opens the next or the previous episode of the list as it is sorted and filtered, once its row is there. */
function useStep(rows: Rows, id: string, list: { current: ListHandle | null }): (by: 1 | -1) => void {
  const at = useRef({ id: '', index: -1 })
  const awaited = useRef<{ rows: Rows; index: number; id: string } | null>(null)
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
function isStillAt(rows: Rows, id: string, at: { id: string; index: number }): boolean {
  if (at.id !== id || at.index < 0 || at.index >= (rows.total ?? 0)) return false
  const row = rows.row(at.index)
  return row === null || row.episode_id === id
}

function indexOf(rows: Rows, id: string): number {
  if (id === '') return -1
  for (let index = 0; index < (rows.total ?? 0); index++) if (rows.row(index)?.episode_id === id) return index
  return -1
}

/** So much of the text before a match that the match itself stays in sight. */
function before(text: string): string {
  return text.length > BEFORE ? `…${text.slice(-BEFORE)}` : text
}
