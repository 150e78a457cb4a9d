/** The forest as a tree: one row a message, one column a branch, and at each branch why it began. */

import { useMemo } from 'preact/hooks'

import { ForkMark } from '../common/ForkMark'
import { Empty } from '../common/Notice'
import type { Episode, Message } from '../data/types'
import { VirtualList } from '../list/VirtualList'
import { go } from '../state/place'
import { callText, plainText } from '../text/content'
import { brief, integer } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import { differsFrom, tokensOf, treeRows, type TreeRow } from './forest'
import { RoleChip } from './MessageCard'

const ROW = 40
const FORK_ROW = 64
const LANE = 18
/** Columns beyond this share the last one: the picture would be wider than the text. */
const MOST_LANES = 24
const SNIPPET = 160
/** Of the message that a branch leaves, beside why. */
const SHORT_SNIPPET = 60

export function BranchesFace({ episode }: { episode: Episode }) {
  const rows = useMemo(() => treeRows(episode.messages, episode.timelines), [episode])
  const lanes = Math.min(MOST_LANES, 1 + Math.max(0, ...rows.map((row) => row.lane)))
  if (rows.length === 0) return <Empty title={t('nothing')} />
  return (
    <div class="branches">
      <p class="face-bar">
        {episode.timelines.length > 1 ? t('n_branches', { n: episode.timelines.length }) : t('no_forks')}
        {agentsOf(episode).map((agent, index) => (
          <button key={agent} class={`quiet agent-${index % 6}`} title={t('open_chat')} onClick={() => openAgent(episode, agent)}>
            {agent}
          </button>
        ))}
      </p>
      <VirtualList
        label={t('branches_face')}
        length={rows.length}
        height={(index) => heightOf(rows[index]!)}
        identity={episode.row.episode_id}
        render={(index) => <Row key={rows[index]!.message.node} row={rows[index]!} lanes={lanes} episode={episode} />}
      />
    </div>
  )
}

function Row({ row, lanes, episode }: { row: TreeRow; lanes: number; episode: Episode }) {
  const { message, parent, timelines } = row
  const agent = agentsOf(episode).indexOf(message.agent)
  const other = differsFrom(message, episode.timelines)
  const open = (): void => go({ face: 'chat', timeline: timelines[0] ?? 0, node: message.node, token: -1 })
  return (
    <div role="listitem">
      <button class={`tree-row ${message.fork_cause !== null ? 'tall' : ''}`} onClick={open} title={t('open_chat')} data-node={message.node}>
        <Lanes row={row} lanes={lanes} agent={agent} />
        <span class="tree-text">
          <span class="tree-line">
            <RoleChip role={message.role} />
            {message.agent && <span class={`agent agent-name agent-${Math.max(0, agent) % 6}`}>{message.agent}</span>}
            <span class="snippet">{brief(textOf(message), SNIPPET)}</span>
            <span class="facts">{t('n_tokens', { n: integer(tokensOf(message)) })}</span>
          </span>
          {message.fork_cause !== null && (
            <span class="tree-line fork-line">
              <span class="chip fork">
                <ForkMark /> {t('fork', { cause: term(message.fork_cause) })}
              </span>
              {parent !== null && (
                <span class="leaves" title={brief(textOf(parent), SNIPPET)}>
                  {t('leaves', { n: row.number - 1, role: parent.role, text: brief(textOf(parent), SHORT_SNIPPET) })}
                </span>
              )}
              {other !== null && <span>{t('differs_from', { n: other + 1 })}</span>}
            </span>
          )}
        </span>
      </button>
    </div>
  )
}

function Lanes({ row, lanes, agent }: { row: TreeRow; lanes: number; agent: number }) {
  const height = heightOf(row)
  const x = (lane: number): number => LANE / 2 + Math.min(lane, MOST_LANES - 1) * LANE
  const middle = 20
  const here = x(row.lane)
  return (
    <svg class="lanes" width={lanes * LANE + 4} height={height} aria-hidden="true">
      {row.passing.map((lane) => (
        <path key={lane} d={`M${x(lane)} 0V${height}`} />
      ))}
      {row.forks.map((lane) => (
        <path key={lane} class="fork-edge" d={`M${here} ${middle}C${here} ${height} ${x(lane)} ${middle} ${x(lane)} ${height}`} />
      ))}
      {row.message.parent !== null && <path d={`M${here} 0V${middle}`} />}
      {row.goesOn && <path d={`M${here} ${middle}V${height}`} />}
      {row.message.sampled ? (
        <circle class={`sampled agent-${Math.max(0, agent) % 6}`} cx={here} cy={middle} r={5.5} />
      ) : (
        <circle cx={here} cy={middle} r={4.5} />
      )}
    </svg>
  )
}

function heightOf(row: TreeRow): number {
  return row.message.fork_cause === null ? ROW : FORK_ROW
}

function openAgent(episode: Episode, agent: string): void {
  const timeline = episode.timelines.findIndex((item) => item.agent === agent)
  if (timeline >= 0) go({ face: 'chat', timeline, node: -1, token: -1 })
}

function agentsOf(episode: Episode): string[] {
  return [...new Set(episode.messages.map((message) => message.agent))].filter((agent) => agent !== '')
}

function textOf(message: Message): string {
  const calls = message.tool_calls.map(callText).join(' ')
  return [plainText(message.content), calls].filter((text) => text !== '').join(' ')
}
