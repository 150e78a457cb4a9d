/** The agents of an episode side by side, time running downwards: who spoke when, and who later read it. */

import { useMemo, useState } from 'preact/hooks'

import { Select } from '../common/Select'
import type { Episode, Message, TimelineInfo } from '../data/types'
import { go } from '../state/place'
import { callText, plainText } from '../text/content'
import { integer, number, signed } from '../text/format'
import { t } from '../text/translate'

/** Shorter texts stand in others by chance. */
const LEAST = 8

export interface Lane {
  agent: string
  target: string
  policy: string | null
  reward: number | null
  advantage: number | null
  answers: number
  tokens: number
  /** The timeline that shows most of what it read and wrote. */
  timeline: number
}

export interface Saying {
  message: Message
  text: string
  /** Agents that read the text later. */
  seenBy: Set<string>
}

/** Whoever wrote something, in the order of their first answers. */
export function speakers(episode: Episode): string[] {
  return [...new Set(episode.messages.filter(({ sampled }) => sampled).map(({ agent }) => agent))]
}

export function lanesOf(episode: Episode): Lane[] {
  const perTarget = (episode.reward?.per_target ?? null) as { [target: string]: number | null } | null
  return speakers(episode).map((agent) => {
    const written = episode.messages.filter((message) => message.sampled && message.agent === agent)
    const advantages = written.flatMap(({ advantage }) => advantage ?? [])
    const timeline = longest(episode.timelines, agent)
    const target = episode.timelines[timeline]?.target ?? agent
    return {
      agent,
      target,
      policy: episode.timelines[timeline]?.policy ?? null,
      reward: perTarget ? (perTarget[target] ?? null) : episode.row.reward,
      advantage: advantages.length > 0 ? advantages.reduce((sum, each) => sum + each, 0) / advantages.length : null,
      answers: written.length,
      tokens: written.reduce((sum, { n_sampled }) => sum + n_sampled, 0),
      timeline,
    }
  })
}

/** Each answer in the order of time. An agent saw it where a message that it read later holds the text, word for word. */
export function sayings(messages: Message[]): Saying[] {
  const read = messages.filter(({ sampled }) => !sampled).map((message) => ({ message, text: plainText(message.content) }))
  return messages
    .filter(({ sampled }) => sampled)
    .map((message) => {
      const text = textOf(message)
      const sought = plainText(message.content).trim()
      const later = sought.length < LEAST ? [] : read.filter((each) => each.message.node > message.node && each.text.includes(sought))
      return { message, text, seenBy: new Set(later.map((each) => each.message.agent)) }
    })
}

export function LanesFace({ episode }: { episode: Episode }) {
  const lanes = useMemo(() => lanesOf(episode), [episode])
  const all = useMemo(() => sayings(episode.messages), [episode])
  const [only, setOnly] = useState('')
  const shown = lanes.filter(({ agent, policy, target }) => only === '' || [`a ${agent}`, `p ${policy}`, `t ${target}`].includes(only))
  const agents = shown.map(({ agent }) => agent)
  const rows = all.filter(({ message }) => only === '' || agents.includes(message.agent))
  const named = (kind: string, word: string, values: (string | null)[]): [string, string][] => {
    const known = [...new Set(values)].filter((value) => value !== null)
    return known.length > 1 ? known.map((value) => [`${kind} ${value}`, `${word}: ${value}`]) : []
  }
  const choices: [string, string][] = [
    ['', t('all_agents')],
    ...named('p', t('policy'), lanes.map(({ policy }) => policy)),
    ...(lanes.some(({ agent, target }) => agent !== target) ? named('t', t('target'), lanes.map(({ target }) => target)) : []),
    ...named('a', t('agent'), lanes.map(({ agent }) => agent)),
  ]
  return (
    <div class="lanes-face">
      <div class="face-bar">
        <Select label={t('shown_agents')} value={only} options={choices} onChange={setOnly} />
        <span class="faint">{t('lanes_hint')}</span>
      </div>
      <div class="scroller" tabIndex={0} role="region" aria-label={t('lanes')}>
        <table class="lane-table" style={`min-width: ${shown.length * 156 + 40}px`}>
          <thead>
            <tr>
              <th scope="col" class="lane-number">
                #
              </th>
              {shown.map((lane) => (
                <LaneHead key={lane.agent} lane={lane} index={lanes.indexOf(lane)} />
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((saying) => (
              <Row key={saying.message.node} saying={saying} agents={agents} lanes={lanes} episode={episode} number={all.indexOf(saying) + 1} />
            ))}
          </tbody>
        </table>
      </div>
    </div>
  )
}

function LaneHead({ lane, index }: { lane: Lane; index: number }) {
  const facts = [
    lane.target !== lane.agent ? lane.target : null,
    lane.policy !== null ? `${t('policy')} ${lane.policy}` : null,
    `${t('reward')} ${number(lane.reward)}`,
    lane.advantage !== null ? `A ${signed(lane.advantage)}` : null,
    t('n_turns', { n: lane.answers }),
    t('n_tokens', { n: integer(lane.tokens) }),
  ]
  return (
    <th scope="col">
      <div class="lane-name">
        <span class={`agent-${index % 6}`}>{lane.agent}</span>
        <button class="quiet" title={t('read_as', { agent: lane.agent })} aria-label={t('read_as', { agent: lane.agent })} onClick={() => go({ face: 'chat', timeline: lane.timeline, node: -1, token: -1 })}>
          {t('read_short')}
        </button>
      </div>
      <div class="faint lane-facts">{facts.filter((fact) => fact !== null).join(' · ')}</div>
    </th>
  )
}

interface RowProps {
  saying: Saying
  agents: string[]
  lanes: Lane[]
  episode: Episode
  number: number
}

function Row({ saying, agents, lanes, episode, number: at }: RowProps) {
  const { message, text, seenBy } = saying
  const open = (): void => {
    const timeline = episode.timelines.findIndex(({ path }) => path.includes(message.node))
    go({ face: 'chat', timeline: Math.max(0, timeline), node: message.node, token: -1 })
  }
  return (
    <tr>
      <td class="lane-number faint">{at}</td>
      {agents.map((agent) =>
        agent === message.agent ? (
          <td key={agent}>
            <button class={`saying agent-${lanes.findIndex((lane) => lane.agent === agent) % 6}`} title={t('open_chat')} onClick={open}>
              <span>{text || t('said_nothing')}</span>
            </button>
          </td>
        ) : (
          <td key={agent} class="lane-other">
            {seenBy.has(agent) && (
              <span role="img" title={t('saw', { agent })} aria-label={t('saw', { agent })}>
                ◦
              </span>
            )}
          </td>
        ),
      )}
    </tr>
  )
}

function longest(timelines: TimelineInfo[], agent: string): number {
  let best = -1
  timelines.forEach((timeline, index) => {
    if (timeline.agent === agent && (best < 0 || timeline.path.length > timelines[best]!.path.length)) best = index
  })
  return Math.max(0, best)
}

function textOf(message: Message): string {
  const calls = message.tool_calls.map(callText)
  return [plainText(message.content), ...calls].filter((text) => text !== '').join('\n')
}
