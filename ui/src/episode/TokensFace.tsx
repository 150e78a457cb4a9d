/** A timeline's tokens, every one in order: colours, hover, a token to pin and walk from. */

import { useEffect, useMemo, useRef } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import type { Tokens } from '../data/types'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { go, usePlace } from '../state/place'
import type { Resource } from '../state/resource'
import { integer } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import { greatestAdvantage } from '../tokens/colour'
import { Columns } from '../tokens/columns'
import { Hover } from '../tokens/Hover'
import { Legend } from '../tokens/Legend'
import { lineOf, lines, type Line } from '../tokens/lines'
import { useColumns } from '../tokens/measure'
import { FactList } from '../tokens/TokenFacts'
import { TokenLine } from '../tokens/TokenLine'
import { RoleChip } from './MessageCard'
import type { FaceProps } from './face'

export const LINE = 24
const HEADING = 40

export function TokensFace({ answer, ...props }: FaceProps & { answer: Resource<Tokens> }) {
  const { episode, timeline } = props
  const columns = useMemo(() => answer.data && new Columns(answer.data), [answer.data])
  if (episode.timelines.length === 0) return <Empty title={t('no_timeline')} hint={t('no_timeline_hint')} />
  if (answer.error) return <Failure error={answer.error} again={answer.again} />
  if (!columns) return <Loading />
  return <TokenText key={`${episode.row.episode_id}/${timeline}`} {...props} columns={columns} />
}

function TokenText({ episode, timeline, node, onNode, current, commands, columns }: FaceProps & { columns: Columns }) {
  const { colour, token } = usePlace()
  const area = useRef<HTMLDivElement>(null)
  const list = useRef<ListHandle>(null)
  const width = useColumns(() => area.current)
  const all = useMemo(() => (width > 0 ? lines(columns, width) : []), [columns, width])
  const scale = useMemo(() => greatestAdvantage(columns), [columns])
  const why = columns.whyWithoutLoss
  const pinned = token >= 0 && token < columns.length ? token : -1

  useEffect(() => {
    commands.current = {
      step: (by) => {
        const to = nextHeading(all, Math.max(0, all.findIndex((line) => line.node === current())), by)
        list.current?.scrollTo(to)
        onNode(all[to]?.node ?? -1)
      },
    }
  }, [all])
  useEffect(() => {
    if (pinned >= 0) list.current?.scrollTo(Math.max(0, lineOf(all, pinned) - 3))
    else if (node >= 0) list.current?.scrollTo(all.findIndex((line) => line.node === node))
    else list.current?.scrollTo(Math.max(0, firstSampled(columns, all)))
  }, [width])

  const pin = (index: number): void => {
    go({ token: index }, { replace: true })
    if (index >= 0) list.current?.scrollTo(lineOf(all, index), 'nearest')
  }
  const walk = (event: KeyboardEvent): void => {
    const to = walked(event.key, pinned, all, columns.length)
    if (to === null) return
    event.preventDefault()
    pin(to)
  }
  const click = (event: MouseEvent): void => {
    const found = (event.target as HTMLElement).closest<HTMLElement>('[data-token]')
    if (found) pin(Number(found.dataset.token) === pinned ? -1 : Number(found.dataset.token))
  }

  return (
    <div class="tokens-face">
      <div class="face-bar">
        <Legend colouring={colour} scale={scale} />
        {why !== null && <span>{t('without_loss', { reason: term(why) })}</span>}
        {colour === 'gap' && !columns.knowsTrainer && <span class="warn">{t('trainer_unknown')}</span>}
      </div>
      <div class="tokens-area" ref={area} onClick={click} onKeyDown={walk}>
        {width > 0 && (
          <VirtualList
            class="tokens"
            label={`${t('tokens')}: ${integer(columns.length)}`}
            role="document"
            length={all.length}
            height={(index) => (all[index]!.kind === 'heading' ? HEADING : LINE)}
            identity={`${episode.row.episode_id}/${timeline}/${width}`}
            handle={list}
            onTop={(index) => onNode(all[index]?.node ?? -1)}
            render={(index) => {
              const line = all[index]!
              if (line.kind === 'heading') return <Heading key={index} columns={columns} line={line} />
              const isIn = pinned >= line.start && pinned < line.end
              return (
                <TokenLine
                  key={index}
                  columns={columns}
                  start={line.start}
                  end={line.end}
                  colouring={colour}
                  scale={scale}
                  pinned={isIn ? pinned : -1}
                />
              )
            }}
          />
        )}
      </div>
      <Hover area={area} columns={() => columns} pinned={pinned} />
      {pinned >= 0 && (
        <aside class="pinned-card" aria-live="polite" aria-label={t('token')}>
          <button class="icon" aria-label={t('unpin')} title={t('unpin')} onClick={() => pin(-1)}>
            ✕
          </button>
          <FactList facts={columns.facts(pinned)} />
        </aside>
      )}
    </div>
  )
}

function Heading({ columns, line }: { columns: Columns; line: Line }) {
  const span = columns.span(line.start)
  return (
    <div class="line-heading">
      <RoleChip role={span.role} />
      <span class="agent agent-name">{span.agent}</span>
      <span class="facts">{integer(line.start)}</span>
    </div>
  )
}

/** The heading of the first message that the model wrote: what was read before it is scrolled past. */
function firstSampled(columns: Columns, all: Line[]): number {
  const sampled = new Set(columns.spans.filter((span) => span.sampled).map(({ node }) => node))
  return all.findIndex((line) => sampled.has(line.node))
}

function nextHeading(all: Line[], from: number, by: 1 | -1): number {
  for (let at = from + by; at >= 0 && at < all.length; at += by) if (all[at]!.kind === 'heading') return at
  return by < 0 ? 0 : from
}

/** Where a key moves the pinned token; null where it does nothing. */
function walked(key: string, pinned: number, all: Line[], length: number): number | null {
  const bounded = (index: number): number => Math.max(0, Math.min(index, length - 1))
  if (key === 'ArrowRight') return bounded(pinned + 1)
  if (key === 'ArrowLeft') return bounded(pinned - 1)
  if (pinned < 0) return null
  if (key === 'Escape') return -1
  if (key !== 'ArrowDown' && key !== 'ArrowUp') return null
  const at = lineOf(all, pinned)
  const by = key === 'ArrowDown' ? 1 : -1
  let to = at + by
  while (all[to]?.kind === 'heading') to += by
  const target = all[to]
  if (!target) return pinned
  return Math.min(target.start + pinned - all[at]!.start, target.end - 1)
}
