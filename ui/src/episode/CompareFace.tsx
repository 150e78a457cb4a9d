/** The episodes of a group beside each other, and one of them against this one, token by token. */

import { useMemo, useRef } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import { EpisodeOutcome } from '../common/Status'
import type { Episode, GroupMember } from '../data/types'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { go, openEpisode, usePlace } from '../state/place'
import { useResource } from '../state/resource'
import { useSource } from '../state/source'
import { integer, number, signed } from '../text/format'
import { t } from '../text/translate'
import { Columns } from '../tokens/columns'
import { Hover } from '../tokens/Hover'
import { useColumns } from '../tokens/measure'
import { TokenLine } from '../tokens/TokenLine'
import { aligned, fromFirstDifference, type Pair } from './aligned'
import { changes, firstDifference } from './diff'
import { LINE } from './TokensFace'

export function CompareFace({ episode }: { episode: Episode }) {
  const place = usePlace()
  const source = useSource()
  const { group, row } = episode
  const others = group.filter((member) => member.episode_id !== row.episode_id && source.holds(member.episode_id))
  const other = others.find((member) => member.episode_id === place.with) ?? others[0]
  const isBranch = place.with === row.episode_id
  return (
    <div class="compare">
      <GroupTable group={group} here={row.episode_id} other={isBranch ? row.episode_id : (other?.episode_id ?? '')} />
      {isBranch || other ? (
        <Against key={`${row.episode_id} ${place.with}`} episode={episode} other={isBranch ? row.episode_id : other!.episode_id} />
      ) : (
        <Empty title={t('group_alone')} />
      )}
    </div>
  )
}

function GroupTable({ group, here, other }: { group: GroupMember[]; here: string; other: string }) {
  const greatest = Math.max(1e-9, ...group.map((member) => Math.abs(member.reward ?? 0)))
  return (
    <div class="group">
      <table>
        <caption>{t('group', { n: group.length })}</caption>
        <thead>
          <tr>
            <th scope="col">{t('repeat')}</th>
            <th scope="col">{t('status')}</th>
            <th scope="col">{t('reward')}</th>
            <th scope="col">{t('advantage')}</th>
            <th scope="col">
              <span class="unseen">{t('compare_with')}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {group.map((member) => (
            <tr key={member.episode_id} class={member.episode_id === here ? 'here' : member.episode_id === other ? 'other' : ''}>
              <th scope="row">
                <button class="quiet" onClick={() => openEpisode(member.episode_id, { face: 'compare', with: here })}>
                  #{member.repeat}
                </button>
              </th>
              <td>
                <EpisodeOutcome status={member.status} />
              </td>
              <td class="number with-meter">
                <meter min={0} max={greatest} value={Math.max(0, member.reward ?? 0)} aria-hidden="true" />
                <span>{number(member.reward)}</span>
              </td>
              <td class="number">{signed(member.advantage)}</td>
              <td>
                {member.episode_id === here ? (
                  t('this_episode')
                ) : (
                  <button
                    aria-pressed={member.episode_id === other}
                    onClick={() => go({ with: member.episode_id, with_timeline: 0 }, { replace: true })}
                  >
                    {member.episode_id === other ? t('comparing') : t('compare_with')}
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function Against({ episode, other }: { episode: Episode; other: string }) {
  const source = useSource()
  const { run, timeline, with_timeline } = usePlace()
  const id = episode.row.episode_id
  const key = [run, id, timeline, other, with_timeline].join(' ')
  const answer = useResource(`against ${key}`, async () => {
    const [mine, its, second] = await Promise.all([
      source.tokens(run ?? '', id, timeline),
      source.tokens(run ?? '', other, with_timeline),
      source.episode(run ?? '', other),
    ])
    return { a: new Columns(mine), b: new Columns(its), episode: second }
  })
  if (answer.error) return <Failure error={answer.error} again={answer.again} />
  if (!answer.data) return <Loading />
  return (
    <>
      {answer.data.episode.timelines.length > 1 && (
        <Select
          label={t('other_timeline')}
          value={String(with_timeline)}
          options={answer.data.episode.timelines.map((item, index) => [String(index), `${index + 1} · ${item.agent}`])}
          onChange={(value) => go({ with_timeline: Number(value) }, { replace: true })}
        />
      )}
      <Diff key={key} {...answer.data} first={episode} />
    </>
  )
}

function Diff({ a, b, first, episode }: { a: Columns; b: Columns; first: Episode; episode: Episode }) {
  const area = useRef<HTMLDivElement>(null)
  const list = useRef<ListHandle>(null)
  const width = useColumns(() => area.current)
  const difference = useMemo(() => firstDifference(a.ids, b.ids), [a, b])
  const folded = useMemo(() => fromFirstDifference(changes(a.ids, b.ids)), [a, b])
  const half = Math.floor(width / 2) - 4
  const pairs = useMemo(() => (half > 0 ? aligned(a, b, folded.changes, half) : []), [folded, half])
  const where = difference === null ? null : (difference < a.length ? a : b).span(difference)
  return (
    <div class="diff">
      <div class="face-bar">
        {difference === null || where === null ? (
          <span>{t('same_tokens')}</span>
        ) : (
          <>
            <strong>{t('first_difference', { n: integer(difference), message: `${where.role} · ${where.agent}` })}</strong>
            {folded.hidden > 0 && <span class="faint">{t('same_before', { n: integer(folded.hidden) })}</span>}
            <button class="quiet" onClick={() => list.current?.scrollTo(pairs.findIndex((pair) => pair.kind !== 'equal'))}>
              {t('to_first_difference')}
            </button>
            <span class="legend-item">
              <span class="t mine">abc</span> {t('key_only_this')}
            </span>
            <span class="legend-item">
              <span class="t its">abc</span> {t('key_only_other')}
            </span>
          </>
        )}
      </div>
      <div class="diff-heads">
        <span>
          #{first.row.repeat} · {number(first.row.reward)}
        </span>
        <span>
          #{episode.row.repeat} · {number(episode.row.reward)}
        </span>
      </div>
      <div class="tokens-area" ref={area}>
        {width > 0 && (
          <VirtualList
            class="tokens"
            label={t('compare')}
            role="document"
            length={pairs.length}
            height={() => LINE}
            identity={`${first.row.episode_id} ${episode.row.episode_id} ${half}`}
            handle={list}
            render={(index) => (
              <div key={index} class="pair">
                <Side columns={a} pair={pairs[index]!} side="a" />
                <Side columns={b} pair={pairs[index]!} side="b" />
              </div>
            )}
          />
        )}
      </div>
      <Hover area={area} columns={(side) => (side === 'a' ? a : b)} />
    </div>
  )
}

const MINE = (): string => ' mine'
const ITS = (): string => ' its'

function Side({ columns, pair, side }: { columns: Columns; pair: Pair; side: 'a' | 'b' }) {
  const stretch = pair[side]
  const mark = pair.kind === 'equal' ? undefined : side === 'a' ? MINE : ITS
  return (
    <div class={`side ${stretch === null ? 'empty' : ''}`} data-side={side}>
      {stretch && (
        <TokenLine columns={columns} {...stretch} colouring="loss" scale={1} pinned={-1} {...(mark ? { mark } : {})} />
      )}
    </div>
  )
}
