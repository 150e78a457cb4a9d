import { expect, it } from 'vitest'

import type { Tokens } from '../data/types'
import { Columns } from '../tokens/columns'
import { aligned, words } from './aligned'

/** Each text is a token. */
function columns(texts: string[]): Columns {
  const named = Object.fromEntries(texts.map((text, id) => [String(id), text]))
  const span = { start: 0, end: texts.length, node: 0, role: 'assistant', agent: 'a', sampled: true, mask_reason: null, weights_version: 0 }
  return new Columns({ revision: '', length: texts.length, ids: texts.map((_, id) => id), texts: named, bytes: {}, characters: [], spans: [span], loss: [], logprobs: [], trainer_logprobs: null, advantages: null, grammar: [] } as Tokens)
}

function shown(one: Columns, stretch: { start: number; end: number } | null): string {
  let text = ''
  for (let at = stretch?.start ?? 0; at < (stretch?.end ?? 0); at++) text += one.shown(at)
  return text
}

it('puts tokens together to words with the space before them', () => {
  const found = words(columns(['the', ' ans', 'wer', ' is', ' 4', '2', '.']))
  expect(found.map(({ text }) => text)).toEqual(['the', ' answer', ' is', ' 42', '.'])
})

it('aligns the same words however they were cut into tokens, and lets a line flow on', () => {
  const a = columns(['So', ' the', ' ans', 'wer', ' is', ' 42', '.'])
  const b = columns(['So', ' an', 'swer', ' is', ' 17', '.'])
  const { pairs, onlyA, onlyB } = aligned(a, b, 40)
  expect(pairs).toHaveLength(1)
  expect(shown(a, pairs[0]!.a)).toBe('So the answer is 42.')
  expect(shown(b, pairs[0]!.b)).toBe('So answer is 17.')
  expect([...onlyA]).toEqual([0, 1, 0, 0, 0, 1, 0])
  expect([...onlyB]).toEqual([0, 0, 0, 0, 1, 0])
})

it('keeps what belongs together in one line where one side has more to say', () => {
  const more = ['a', ...Array.from({ length: 12 }, (_, at) => ` extra${at}`), ' end']
  const { pairs } = aligned(columns(more), columns(['a', ' end']), 20)
  const last = pairs.at(-1)!
  expect(shown(columns(more), last.a).endsWith('end')).toBe(true)
  expect(shown(columns(['a', ' end']), last.b)).toBe(' end')
  expect(pairs.slice(1, -1).every(({ b, differs }) => b === null && differs)).toBe(true)
})

it('loses no token of either side', () => {
  const texts = ['x'.repeat(50), '\n', 'one', ' two', '\n', 'three']
  const one = columns(texts)
  const { pairs } = aligned(one, columns(['one', ' two']), 10)
  expect(pairs.map(({ a }) => shown(one, a)).join('')).toBe(texts.join(''))
})
