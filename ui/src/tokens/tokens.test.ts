import { describe, expect, it } from 'vitest'

import type { Tokens } from '../data/types'
import { cells, visible } from './cells'
import { tokenClass } from './colour'
import { Columns, expanded, lastAtMost } from './columns'
import { lineOf, lines, piece } from './lines'

/** `Hi` `\n` are read; `ok`, the two halves of 你, and `!` are sampled, the last masked in a span of its own. */
const TOKENS: Tokens = {
  revision: '',
  length: 6,
  ids: [1, 2, 3, 4, 5, 6],
  texts: { 1: 'Hi', 2: '\n', 3: 'ok', 4: '\ufffd', 5: '\ufffd', 6: '!' },
  bytes: { 4: 'e4bd', 5: 'a0' },
  characters: [[3, 5, '你']],
  spans: [
    { start: 0, end: 2, node: 0, role: 'user', agent: 'a', sampled: false, mask_reason: null, weights_version: null },
    { start: 2, end: 5, node: 1, role: 'assistant', agent: 'a', sampled: true, mask_reason: null, weights_version: 3 },
    { start: 5, end: 6, node: 2, role: 'assistant', agent: 'b', sampled: true, mask_reason: 'not a training target', weights_version: 3 },
  ],
  loss: [[2, 5]],
  logprobs: [-0.5, -1, null, -9],
  trainer_logprobs: [-0.6, null, null, -9],
  advantages: [-1.5, null],
  grammar: [false, false, true],
}

describe('Columns', () => {
  const columns = new Columns(TOKENS)

  it('finds what belongs to a token among the columns of sampled ones', () => {
    expect([0, 1, 2, 3, 4, 5].map((index) => columns.logprob(index))).toEqual([null, null, -0.5, -1, null, -9])
    expect(columns.trainerLogprob(2)).toBe(-0.6)
    expect([1, 2, 5].map((index) => columns.advantage(index))).toEqual([null, -1.5, null])
    expect([1, 2, 4, 5].map((index) => columns.hasLoss(index))).toEqual([false, true, true, false])
  })

  it('says which part of which character a token is', () => {
    expect(columns.facts(4)).toMatchObject({ bytes: 'a0', character: { text: '你', part: 2, parts: 2 }, loss: true })
    expect(columns.facts(5)).toMatchObject({ character: null, grammar: true, loss: false })
    expect([2, 3, 4, 5].map((index) => piece(columns, index))).toEqual(['ok', '你', '·', '!'])
  })

  it('shows the ids of tokens where nothing says how they read', () => {
    const unread = new Columns({ ...TOKENS, texts: {}, bytes: {}, characters: [] })
    expect([0, 5].map((index) => piece(unread, index))).toEqual(['⟨1⟩', '⟨6⟩'])
    expect(piece(new Columns({ ...TOKENS, texts: { 1: '' } }), 0)).toBe('∅')
  })

  it('says why nothing takes part in the loss', () => {
    const spans = TOKENS.spans.map((span) => ({ ...span, mask_reason: span.sampled ? 'held out' : null }))
    expect(new Columns({ ...TOKENS, spans, loss: [] }).whyWithoutLoss).toBe('held out')
    expect([columns, new Columns({ ...TOKENS, loss: [] })].map((each) => each.whyWithoutLoss)).toEqual([null, null])
  })

  it('colours what takes part in the loss, what was read and what is masked apart', () => {
    const kinds = [0, 2, 3, 5].map((index) => tokenClass(columns, index, 'loss', 1))
    expect(kinds).toEqual(['t read', 't loss', 't loss part', 't masked'])
    expect(tokenClass(columns, 2, 'gap', 1)).toBe('t n1')
    expect(tokenClass(columns, 0, 'logprob', 1)).toBe('t none')
    expect(tokenClass(columns, 5, 'logprob', 1)).toBe('t s7')
  })

  it('breaks lines at messages, at line feeds and where they are full', () => {
    const all = lines(columns, 4)
    expect(all.map(({ kind, start, end }) => [kind, start, end])).toEqual([
      ['heading', 0, 0],
      ['tokens', 0, 2],
      ['heading', 2, 2],
      ['tokens', 2, 4],
      ['tokens', 4, 5],
      ['heading', 5, 5],
      ['tokens', 5, 6],
    ])
    for (let index = 0; index < 6; index++) {
      const line = all[lineOf(all, index)]!
      expect(line.kind === 'tokens' && line.start <= index && index < line.end).toBe(true)
    }
  })

  it('lays out 100,000 tokens at once', () => {
    const length = 100_000
    const many = new Columns({
      ...TOKENS,
      length,
      ids: Array.from({ length }, (_, index) => 1 + (index % 3)),
      characters: [],
      spans: [{ ...TOKENS.spans[1]!, start: 0, end: length }],
      loss: [[0, length]],
    })
    const all = lines(many, 80)
    expect(all.at(-1)!.end).toBe(length)
    expect(all.filter(({ kind }) => kind === 'tokens').reduce((sum, { start, end }) => sum + end - start, 0)).toBe(length)
  })
})

describe('cells', () => {
  it('counts wide characters twice and joined ones not at all', () => {
    expect(cells('abc')).toBe(3)
    expect(cells('你好')).toBe(4)
    expect(cells('e\u0301')).toBe(1)
    expect(cells('🙂')).toBe(2)
  })

  it('marks what has no picture of its own, and what would turn the rest around', () => {
    expect(visible('a\n\tb')).toBe('a↵⇥b')
    expect(visible('\u202eevil\u0000')).toBe('�evil�')
  })
})

describe('run lengths', () => {
  it('expand to flags', () => {
    expect([...expanded([[1, 3], [4, 5]], 6)]).toEqual([0, 1, 1, 0, 1, 0])
    expect(lastAtMost([0, 4, 9], 8)).toBe(1)
    expect(lastAtMost([0, 4, 9], 100)).toBe(2)
  })
})
