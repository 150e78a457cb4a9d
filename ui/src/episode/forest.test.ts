import { expect, it } from 'vitest'

import type { Message, TimelineInfo } from '../data/types'
import { differsFrom, treeRows } from './forest'

function message(node: number, parent: number | null, fork_cause: string | null = null): Message {
  return { node, parent, fork_cause, role: 'user', agent: 'a' } as Message
}

it('draws the worked example', () => {
  const messages = [message(0, null), message(1, 0), message(2, 1), message(3, 2), message(4, 0, 'message edited'), message(5, 4)]
  const timelines = [{ path: [0, 1, 2, 3] }, { path: [0, 4, 5] }] as TimelineInfo[]
  const rows = treeRows(messages, timelines)
  expect(rows.map((row) => [row.message.node, row.lane])).toEqual([[0, 0], [1, 0], [2, 0], [3, 0], [4, 1], [5, 1]])
  expect(rows.map((row) => [row.forks, row.passing])).toEqual([[[1], []], [[], [1]], [[], [1]], [[], [1]], [[], []], [[], []]])
  expect(rows[4]).toMatchObject({ goesOn: true, timelines: [1] })
  expect(rows[0]!.timelines).toEqual([0, 1])
  expect(rows.map((row) => [row.parent?.node ?? null, row.number])).toEqual([[null, 1], [0, 2], [1, 3], [2, 4], [0, 2], [4, 3]])
})

it('keeps the line of a branch that still waits, and gives each root a column of its own', () => {
  const messages = [message(0, null), message(1, 0), message(2, 1), message(3, 1), message(4, 0), message(5, null)]
  const rows = treeRows(messages, [])
  expect(rows.map((row) => [row.message.node, row.lane])).toEqual([[0, 0], [1, 0], [2, 0], [3, 2], [4, 1], [5, 3]])
  expect(rows.map((row) => [row.forks, row.passing])).toEqual([[[1], []], [[2], [1]], [[], [1, 2]], [[], [1]], [[], []], [[], []]])
})

it('holds a forest of thousands of messages in one line', () => {
  const messages = Array.from({ length: 20_000 }, (_, node) => message(node, node === 0 ? null : node - 1))
  expect(treeRows(messages, []).length).toBe(20_000)
})

it('says which timeline a branch differs from, also where the first sample is the one that goes on', () => {
  const again = message(2, 0, 'sampled again')
  const timelines = [{ path: [0, 2] }, { path: [0, 1, 3, 4] }, { path: [0, 1, 5] }] as TimelineInfo[]
  expect(differsFrom(again, timelines)).toBe(1)
  expect(differsFrom(message(5, 1, 'message edited'), timelines)).toBe(1)
  expect(differsFrom(message(6, 0, 'another agent'), timelines)).toBe(0)
  expect(differsFrom(message(7, null, 'another agent'), timelines)).toBe(null)
})
