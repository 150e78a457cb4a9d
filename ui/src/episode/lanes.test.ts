import { expect, it } from 'vitest'

import type { Episode, Message } from '../data/types'
import { lanesOf, sayings, speakers } from './LanesFace'

const said = (node: number, agent: string, content: string, advantage: number | null = null): Message =>
  ({ node, agent, content, sampled: true, n_sampled: 5, advantage, tool_calls: [], role: 'assistant' }) as unknown as Message
const read = (node: number, agent: string, content: string): Message => ({ node, agent, content, sampled: false, tool_calls: [], role: 'user' }) as unknown as Message
const MESSAGES = [
  read(0, 'wolf', 'You are a wolf.'),
  said(1, 'wolf', 'I am a villager.', 0.5),
  read(2, 'seer', 'The wolf says: I am a villager.'),
  said(3, 'seer', 'That is a lie!', -1),
  read(4, 'wolf', 'The seer says: That is a lie!'),
  said(5, 'wolf', 'No.', 1.5),
]

it('says who later read what was said', () => {
  expect(sayings(MESSAGES).map(({ message, seenBy }) => [message.agent, [...seenBy]])).toEqual([
    ['wolf', ['seer']],
    ['seer', ['wolf']],
    ['wolf', []],
  ])
})

it('has a lane for each agent, with the reward of its target and its mean advantage', () => {
  const episode = {
    messages: MESSAGES,
    timelines: [
      { agent: 'wolf', target: 'bad', policy: 'one', path: [0, 1] },
      { agent: 'seer', target: 'good', policy: 'two', path: [2, 3] },
      { agent: 'wolf', target: 'bad', policy: 'one', path: [0, 1, 4, 5] },
    ],
    reward: { per_target: { bad: 1, good: 0 } },
    row: { reward: 0.5 },
  } as unknown as Episode
  expect(speakers(episode)).toEqual(['wolf', 'seer'])
  expect(lanesOf(episode)).toMatchObject([
    { agent: 'wolf', target: 'bad', policy: 'one', reward: 1, advantage: 1, answers: 2, tokens: 10, timeline: 2 },
    { agent: 'seer', target: 'good', policy: 'two', reward: 0, advantage: -1, answers: 1, timeline: 1 },
  ])
})
