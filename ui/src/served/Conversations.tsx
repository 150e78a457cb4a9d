/** Conversations of a served model: the sessions that a filter leaves, and the one that is open. */

import { useEffect, useRef } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import type { SessionRow } from '../data/types'
import { Typed } from '../episodes/Filters'
import { useRows, type Rows } from '../episodes/pages'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { useCommands } from '../state/commands'
import { go, NO_TALK, sessionFilterOf, usePlace } from '../state/place'
import { useResource } from '../state/resource'
import { useSource } from '../state/source'
import { integer, moment } from '../text/format'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import { OPINIONS, OpinionChip } from './opinions'
import { Session } from './Session'
import { versionName } from './version'

const ROW = 62
const ROW_WITH_SNIPPET = 104
const ORDERS = ['newest', 'oldest', 'worst', 'longest'] as const

/** `talked` grows when something was written to the store. */
export function Conversations({ talked }: { talked: number }) {
  const source = useSource()
  const place = usePlace()
  const filter = sessionFilterOf(place)
  const key = JSON.stringify(filter)
  const rows = useRows(key, (offset, limit) => source.conversations(filter, offset, limit))
  const list = useRef<ListHandle>(null)
  const isFiltered = Object.keys(NO_TALK).some((name) => place[name as keyof typeof NO_TALK] !== '')
  useEffect(() => {
    if (talked > 0) rows.again()
  }, [talked])
  const step = (by: 1 | -1): void => {
    const to = Math.max(0, Math.min(indexOf(rows, place.session) + by, (rows.total ?? 0) - 1))
    list.current?.scrollTo(to, 'nearest')
    const row = rows.row(to)
    if (row) go({ session: row.key }, { replace: place.session !== '' })
  }
  useCommands({ j: () => step(1), k: () => step(-1) })
  return (
    <main class={`panes view-served ${place.session === '' ? '' : 'has-episode'}`}>
      <section class="pane episode-pane" aria-label={t('served')}>
        <div class="episode-heading">
          <h1 class="pane-title">
            {t('served')} <span class="count">{rows.total === null ? '' : integer(rows.total)}</span>
          </h1>
        </div>
        <TalkFilters talked={talked} isFiltered={isFiltered} />
        {rows.error ? (
          <Failure error={rows.error} again={rows.again} />
        ) : rows.total === null ? (
          <Loading />
        ) : rows.total === 0 ? (
          <Empty title={t(isFiltered ? 'no_session' : 'no_talk')} hint={t(isFiltered ? 'no_match_hint' : 'no_talk_hint')} />
        ) : (
          <VirtualList
            label={t('served')}
            length={rows.total}
            height={() => (filter.text ? ROW_WITH_SNIPPET : ROW)}
            identity={key}
            handle={list}
            onWindow={rows.need}
            render={(index) => <Row key={index} row={rows.row(index)} session={place.session} isTall={filter.text !== ''} />}
          />
        )}
      </section>
      <Session session={place.session} talked={talked} />
    </main>
  )
}

function indexOf(rows: Rows<SessionRow>, session: string): number {
  for (let index = 0; index < (rows.total ?? 0); index++) if (rows.row(index)?.key === session) return index
  return -1
}

function TalkFilters({ talked, isFiltered }: { talked: number; isFiltered: boolean }) {
  const place = usePlace()
  const source = useSource()
  const counts = useResource('conversation counts', () => source.conversationCounts())
  useEffect(() => {
    if (talked > 0) counts.again()
  }, [talked])
  const choose = (name: 'model' | 'client' | 'opinion', label: Word, any: Word, word = (value: string): string => value) => {
    const known = counts.data?.[name].filter(([value]) => value !== '') ?? []
    const chosen = place[name] !== '' && !known.some(([value]) => value === place[name]) ? [[place[name], 0] as [string, number]] : []
    if (name === 'client' && known.length + chosen.length < 2) return null
    const options = [...known, ...chosen].map(([value, count]): [string, string] => [value, `${word(value)} · ${integer(count)}`])
    return <Select label={t(label)} hideLabel value={place[name]} options={[['', t(any)], ...options]} onChange={(value) => go({ [name]: value }, { replace: true })} />
  }
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <Typed name="said" type="search" label={t('find_text')} hideLabel />
      <div class="talk-choices">
        {choose('opinion', 'opinion', 'any_opinion', (kind) => t(`opinion_${kind}` as Word))}
        {choose('model', 'version_of', 'any_model', versionName)}
        {choose('client', 'client', 'any_client')}
        <Select
          label={t('sort')}
          hideLabel
          value={place.sessions}
          options={ORDERS.map((order): [string, string] => [order === 'newest' ? '' : order, t(`sessions_${order}`)])}
          onChange={(sessions) => go({ sessions }, { replace: true })}
        />
      </div>
      <details class="fold filter-fold" open={place.user !== '' || place.since !== '' || place.until !== ''}>
        <summary>{t('filters')}</summary>
        <div class="filter-grid">
          <Typed name="user" type="text" label={t('user')} />
          <Day name="since" />
          <Day name="until" />
        </div>
      </details>
      {isFiltered && (
        <button type="button" class="quiet end" onClick={() => go(NO_TALK, { replace: true })}>
          {t('clear')}
        </button>
      )}
    </form>
  )
}

function Day({ name }: { name: 'since' | 'until' }) {
  return (
    <label class="field">
      <span>{t(name)}</span>
      <input type="date" value={usePlace()[name]} onChange={(event) => go({ [name]: event.currentTarget.value }, { replace: true })} />
    </label>
  )
}

function Row({ row, session, isTall }: { row: SessionRow | null; session: string; isTall: boolean }) {
  const size = `episode-row ${isTall ? 'tall' : ''}`
  if (row === null) return <div class={`${size} pending`} role="listitem" aria-busy="true" />
  const isHere = row.key === session
  return (
    <div role="listitem" class={`${size} ${isHere ? 'here' : ''}`}>
      <button aria-current={isHere ? 'true' : undefined} data-session={row.key} onClick={() => go({ session: row.key })}>
        <span class="episode-line">
          <span class="question">{row.question || row.key}</span>
        </span>
        <span class="episode-line faint">
          <span>{moment(row.ended).slice(0, 16)}</span>
          <span>{t('n_answers', { n: row.answers })}</span>
          {OPINIONS.map((kind) => row.opinions[kind] && <OpinionChip key={kind} kind={kind} count={row.opinions[kind]} />)}
          <span class="end cut" title={row.models.join(', ')}>{row.models.map(versionName).join(', ')}</span>
        </span>
        {row.snippet && (
          <span class="episode-snippet">
            {row.snippet.before.slice(-40)}
            <mark>{row.snippet.match}</mark>
            {row.snippet.after}
          </span>
        )}
      </button>
    </div>
  )
}
