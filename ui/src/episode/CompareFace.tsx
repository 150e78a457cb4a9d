/** The episodes of a group, or of the same task at other steps or in another run, and one of them against this one, word by word. */

import { useEffect, useMemo, useRef } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Select } from '../common/Select'
import { EpisodeOutcome } from '../common/Status'
import type { Episode, EpisodeRow, GroupMember } from '../data/types'
import { VirtualList, type ListHandle } from '../list/VirtualList'
import { go, NO_FILTER, openEpisode, usePlace } from '../state/place'
import { useResource } from '../state/resource'
import { useSource } from '../state/source'
import { integer, number, signed } from '../text/format'
import { t } from '../text/translate'
import { Columns } from '../tokens/columns'
import { Hover } from '../tokens/Hover'
import { useColumns } from '../tokens/measure'
import { TokenLine } from '../tokens/TokenLine'
import type { Stretch } from '../tokens/lines'
import { aligned } from './aligned'
import { firstDifference } from './diff'
import { LINE } from './TokensFace'

/** In the place of a run: this one, at whichever step. */
const ALL_STEPS = '*'

/** `written` grows when something was written to the run's episodes. */
export function CompareFace({ episode, written }: { episode: Episode; written: number }) {
  const place = usePlace()
  const source = useSource()
  const { row, group } = episode
  const isAlone = group.length < 2 && place.with !== row.episode_id
  const chosen = place.with_run || (isAlone && source.served ? ALL_STEPS : '')
  const elsewhere = chosen === ALL_STEPS ? (place.run ?? '') : chosen
  return (
    <div class="compare">
      {source.served && <RunChoice chosen={chosen} isAlone={isAlone} />}
      {chosen ? <Elsewhere key={`${chosen} ${row.task_id} ${row.split}`} episode={episode} run={elsewhere} written={written} /> : <InGroup episode={episode} />}
    </div>
  )
}

/** Whose episodes of the task are compared with: of the group, of all steps of this run, or of another one. */
function RunChoice({ chosen, isAlone }: { chosen: string; isAlone: boolean }) {
  const source = useSource()
  const { run } = usePlace()
  const runs = useResource('runs to compare', () => source.runs())
  const others = (runs.data ?? []).filter((info) => info.run !== run && !info.notes.archived)
  return (
    <Select
      label={t('compare_run')}
      value={chosen}
      options={[...(isAlone ? [] : [['', t('this_group')] as [string, string]]), [ALL_STEPS, t('this_run')], ...others.map((info): [string, string] => [info.run, `${info.experiment} ${info.name}`])]}
      onChange={(value) => go({ with_run: value, with: '', with_timeline: 0 }, { replace: true })}
    />
  )
}

function InGroup({ episode }: { episode: Episode }) {
  const place = usePlace()
  const source = useSource()
  const { group, row } = episode
  const others = group.filter((member) => member.episode_id !== row.episode_id && source.holds(member.episode_id))
  const other = [row, ...others].find(({ episode_id }) => episode_id === place.with) ?? mostUnlike(others, row)
  return (
    <>
      <GroupTable title={t('group', { n: group.length })} group={group} here={row.episode_id} other={other?.episode_id ?? ''} />
      {other ? (
        <Against key={`${row.episode_id} ${place.with}`} episode={episode} run={place.run ?? ''} other={other.episode_id} />
      ) : (
        <Empty title={t('group_alone')} />
      )}
    </>
  )
}

/** The episode whose reward differs most, the first of equals: what made the difference is what one looks for. */
function mostUnlike(others: GroupMember[], { reward }: Pick<GroupMember, 'reward'>): GroupMember | undefined {
  const distance = (other: GroupMember): number => (other.reward === null || reward === null ? -1 : Math.abs(other.reward - reward))
  return others.toSorted((one, two) => distance(two) - distance(one))[0]
}

/** The same task at other steps, the newest first, or in another run. */
function Elsewhere({ episode, run, written }: { episode: Episode; run: string; written: number }) {
  const place = usePlace()
  const source = useSource()
  const { row } = episode
  const answer = useResource(`elsewhere ${run} ${row.split} ${row.task_id}`, () =>
    source.episodes(run, { ...NO_FILTER, task_id: row.task_id, split: row.split, sort: 'step', order: 'desc' }, 0, MOST_ELSEWHERE),
  )
  useEffect(() => {
    if (written > 0) answer.again()
  }, [written])
  if (answer.error) return <Failure error={answer.error} again={answer.again} />
  if (!answer.data) return <Loading />
  const rows = answer.data.rows.filter((each) => each.status !== 'error' && each.episode_id !== row.episode_id)
  const other = rows.find((each) => each.episode_id === place.with) ?? (run === place.run ? farthest(rows, row) : rows.find((each) => each.step === row.step)) ?? rows[0]
  if (!other) return run === place.run ? <InGroup episode={episode} /> : <Empty title={t('no_such_task')} />
  return (
    <>
      <GroupTable title={t('same_task_there', { run: run === place.run ? t('this_run') : run, n: rows.length })} group={rows} here="" other={other.episode_id} />
      <Against key={`${row.episode_id} ${run} ${other.episode_id}`} episode={episode} run={run} other={other.episode_id} />
    </>
  )
}

/** The newest; for what is the newest itself the oldest: what training made of the task. */
function farthest(rows: EpisodeRow[], { step }: EpisodeRow): EpisodeRow | undefined {
  return rows[0] && rows[0].step > step ? rows[0] : rows.at(-1)
}

/** Episodes of one task that are offered. */
const MOST_ELSEWHERE = 60

interface GroupProps {
  title: string
  /** Of another run they have a step. */
  group: (GroupMember & { step?: number })[]
  here: string
  other: string
}

function GroupTable({ title, group, here, other }: GroupProps) {
  const hasSteps = group.some(({ step }) => step !== undefined)
  const isTrained = group.some(({ advantage }) => advantage !== null)
  const greatest = Math.max(1e-9, ...group.map((member) => Math.abs(member.reward ?? 0)))
  return (
    <div class="group">
      <table>
        <caption>{title}</caption>
        <thead>
          <tr>
            {hasSteps && (
              <th scope="col" class="number">
                {t('step')}
              </th>
            )}
            <th scope="col">{t('repeat')}</th>
            <th scope="col">{t('status')}</th>
            <th scope="col" class="number">
              {t('reward')}
            </th>
            {isTrained && (
              <th scope="col" class="number">
                {t('advantage')}
              </th>
            )}
            <th scope="col">
              <span class="unseen">{t('compare_with')}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {group.map((member) => (
            <tr key={member.episode_id} class={member.episode_id === here ? 'here' : member.episode_id === other ? 'other' : ''}>
              {hasSteps && <td class="number">{member.step}</td>}
              <th scope="row">
                {here === '' ? (
                  `#${member.repeat}`
                ) : (
                  <button class="quiet" onClick={() => openEpisode(member.episode_id, { face: 'compare', with: here })}>
                    #{member.repeat}
                  </button>
                )}
              </th>
              <td>
                <EpisodeOutcome status={member.status} />
              </td>
              <td class="number with-meter">
                <meter min={0} max={greatest} value={Math.max(0, member.reward ?? 0)} aria-hidden="true" />
                <span>{number(member.reward)}</span>
              </td>
              {isTrained && <td class="number">{signed(member.advantage)}</td>}
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

function Against({ episode, run: its, other }: { episode: Episode; run: string; other: string }) {
  const source = useSource()
  const { run, timeline, with_timeline } = usePlace()
  const id = episode.row.episode_id
  const key = [run, id, timeline, its, other, with_timeline].join(' ')
  const answer = useResource(`against ${key}`, async () => {
    const [mine, theirs, second] = await Promise.all([
      source.tokens(run ?? '', id, timeline),
      source.tokens(its, other, with_timeline),
      source.episode(its, other),
    ])
    return { a: new Columns(mine), b: new Columns(theirs), episode: second }
  })
  // What training writes to the group later makes its tokens others.
  useEffect(() => {
    if (answer.data) answer.again()
  }, [episode.revision])
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
  const half = Math.floor(width / 2) - 4
  const layout = useMemo(() => aligned(a, b, Math.max(8, half)), [a, b, half])
  const { pairs, hidden } = layout
  const marks = useMemo(() => ({ a: marked(layout.onlyA, ' mine'), b: marked(layout.onlyB, ' its') }), [layout])
  const where = difference === null ? null : (difference < a.length ? a : b).span(difference)
  return (
    <div class="diff">
      <div class="face-bar">
        {difference === null || where === null ? (
          <span>{t('same_tokens')}</span>
        ) : (
          <>
            <strong>{t('first_difference', { n: integer(difference), message: `${where.role} · ${where.agent}` })}</strong>
            {hidden > 0 && <span class="faint">{t('same_before', { n: integer(hidden) })}</span>}
            <button class="quiet" onClick={() => list.current?.scrollTo(pairs.findIndex((pair) => pair.differs))}>
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
        {[first.row, episode.row].map(({ step, repeat, reward }, side) => (
          <span key={side}>
            {t('at_step', { n: step })} · #{repeat} · {t('reward')} {number(reward)}
          </span>
        ))}
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
                <Side columns={a} stretch={pairs[index]!.a} side="a" mark={marks.a} />
                <Side columns={b} stretch={pairs[index]!.b} side="b" mark={marks.b} />
              </div>
            )}
          />
        )}
      </div>
      <Hover area={area} columns={(side) => (side === 'a' ? a : b)} />
    </div>
  )
}

/** The class of the tokens that stand on one side alone. */
function marked(only: Uint8Array, name: string): (index: number) => string {
  return (index) => (only[index] === 1 ? name : '')
}

interface SideProps {
  columns: Columns
  stretch: Stretch | null
  side: 'a' | 'b'
  mark: (index: number) => string
}

function Side({ columns, stretch, side, mark }: SideProps) {
  return (
    <div class={`side ${stretch === null ? 'empty' : ''}`} data-side={side}>
      {stretch && <TokenLine columns={columns} {...stretch} colouring="loss" scale={1} pinned={-1} mark={mark} />}
    </div>
  )
}
