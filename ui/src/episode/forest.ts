/** An episode's forest as rows of a tree, and what its timelines share. */

import type { Message, TimelineInfo } from '../data/types'

export interface TreeRow {
  message: Message
  /** The message that it follows; null of a root. */
  parent: Message | null
  /** Its place in each timeline that it stands in; a root has 1. */
  number: number
  /** The column of its branch; a first child goes on in its parent's column. */
  lane: number
  /** Columns whose branches pass by this row on their way down. */
  passing: number[]
  /** Columns of the branches that leave this message beside the one that goes on in its own. */
  forks: number[]
  /** Whether a child follows in the same column. */
  goesOn: boolean
  /** Timelines that pass through this message. */
  timelines: number[]
}

/** What the model sampled of it; of a message that it read, everything. */
export function tokensOf(message: Message): number {
  return message.sampled ? message.n_sampled : message.n_tokens
}

/**
 *     S -> U1 -> A1 -> U2            rows   S U1 A1 U2 U1* A2
 *       -> U1* -> A2                 lanes  0 0  0  0  1   1
 *
 * Depth first, so that a branch stands in one piece; a later child has a column of its own.
 */
export function treeRows(messages: Message[], timelines: TimelineInfo[]): TreeRow[] {
  const through = timelinesThrough(timelines)
  const children = new Map<number | null, Message[]>()
  for (const message of messages) {
    const siblings = children.get(message.parent) ?? []
    siblings.push(message)
    children.set(message.parent, siblings)
  }
  const rows: TreeRow[] = []
  let lanes = 0
  /** Branches that still wait: their messages, what these follow, and their columns; a root gets its own when it comes. */
  const waiting: { message: Message; after: TreeRow | null; lane: number | null }[] = []
  const roots = children.get(null) ?? []
  for (const root of roots.toReversed()) waiting.push({ message: root, after: null, lane: null })
  while (waiting.length > 0) {
    const next = waiting.pop()!
    const lane = next.lane ?? lanes++
    const passing = waiting.flatMap((later) => later.lane ?? [])
    const [first, ...others] = children.get(next.message.node) ?? []
    const branches = others.map((message) => ({ message, lane: lanes++ }))
    const row = {
      message: next.message,
      parent: next.after?.message ?? null,
      number: 1 + (next.after?.number ?? 0),
      lane,
      passing,
      forks: branches.map((branch) => branch.lane),
      goesOn: first !== undefined,
      timelines: through.get(next.message.node) ?? [],
    }
    rows.push(row)
    waiting.push(...branches.toReversed().map((branch) => ({ ...branch, after: row })))
    if (first) waiting.push({ message: first, after: row, lane })
  }
  return rows
}

/** The first timeline that goes on from a message's parent to another one: which it differs from here; null where none does. */
export function differsFrom({ node, parent }: Message, timelines: TimelineInfo[]): number | null {
  const index = timelines.findIndex(({ path }) => parent !== null && path.includes(parent) && !path.includes(node))
  return index < 0 ? null : index
}

export function timelinesThrough(timelines: TimelineInfo[]): Map<number, number[]> {
  const through = new Map<number, number[]>()
  timelines.forEach((timeline, index) => {
    for (const node of timeline.path) through.set(node, [...(through.get(node) ?? []), index])
  })
  return through
}
