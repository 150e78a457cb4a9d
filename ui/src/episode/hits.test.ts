import { expect, it } from 'vitest'

import type { Episode } from '../data/types'
import { firstHit, hitsOf, hitTimeline } from './hits'

const message = (node: number, content: string) => ({ node, content, reasoning: null, searched: null })
const EPISODE = {
  messages: [message(0, 'Begin.'), message(1, 'A tree'), message(2, 'Help me.'), message(3, 'HELPED')],
  timelines: [{ path: [0, 1] }, { path: [0, 2, 3] }],
} as Episode

it('finds what was searched for in whichever timeline has it', () => {
  const hits = hitsOf(EPISODE, 'helped')
  expect([...hits]).toEqual([3])
  expect(hitTimeline(EPISODE, hits)).toBe(1)
  expect([0, 1].map((timeline) => firstHit(EPISODE, timeline, hits))).toEqual([-1, 3])
})

it('stays at the first timeline where it has a hit, or none has', () => {
  for (const text of ['tree', 'begin', 'nowhere', '']) expect(hitTimeline(EPISODE, hitsOf(EPISODE, text)), text).toBe(0)
})
