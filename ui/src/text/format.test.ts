import { expect, it } from 'vitest'

import type { Json, Message } from '../data/types'
import { plainText, searchedText } from './content'
import { brief, duration, integer, laidOut, number, percent, rate, seconds, signed } from './format'
import { t } from './translate'
import { WORDS } from './words'

it('writes numbers with the digits that matter', () => {
  const written = (...values: (number | null)[]): string[] => values.map((value) => number(value))
  expect(written(0, 0.03125, 1.5, 12.345, 1234, -0.5, null, NaN)).toEqual(['0', '0.03125', '1.5', '12.35', '1,234', '-0.5', '–', '–'])
  expect(written(0.00125, -0.00105, 1e-3, 1.2e-6, 1.25e-4, 1e-7, -1.05e-5)).toEqual(['0.00125', '-0.00105', '0.001', '1.2e-6', '1.25e-4', '1e-7', '-1.05e-5'])
  expect(written(999.96, 1204.5, -12345.6, 1e9, 1.5e10)).toEqual(['1,000', '1,205', '-12,346', '1e9', '1.5e10'])
  expect(integer(1234567)).toBe('1,234,567')
  expect(signed(0.5)).toBe('+0.5')
  expect(signed(-0.5)).toBe('−0.5')
  expect([0.9997, 0.99999, 0.994, 1, 1.5].map(percent)).toEqual(['99.97 %', '99.999 %', '99.4 %', '100 %', '150 %'])
  expect([percent(0.5), percent(0), percent(0.00001)]).toEqual(['50 %', '0 %', '1.0e-3 %'])
})

it('writes rates of success in one way', () => {
  expect([0, 0.020833, 0.5, 0.9995, 1, null].map(rate)).toEqual(['0 %', '2.1 %', '50 %', '99.95 %', '100 %', '–'])
})

it('writes durations in the units that matter', () => {
  expect([0.4211, 42, 185, 7800, null].map(duration)).toEqual(['0.42 s', '42 s', '3 m 05 s', '2 h 10 m', '–'])
})

it('writes seconds of a column with their points below each other', () => {
  expect([2.64, 3.3, 12, 1234.56, null].map(seconds)).toEqual(['2.6', '3.3', '12.0', '1,234.6', '–'])
})

it('lays out JSON, also within text, and leaves other text alone', () => {
  expect(laidOut('{"a":1}')).toBe('{\n  "a": 1\n}')
  expect(laidOut('{not json')).toBe('{not json')
  expect(laidOut([1])).toBe('[\n  1\n]')
})

it('reads content as text or as parts', () => {
  expect(plainText('hi')).toBe('hi')
  expect(plainText([{ type: 'text', text: 'a' }, { type: 'image_url', image_url: 'x' }])).toBe('a\nimage_url')
  expect(plainText(null)).toBe('')
  expect(brief('a  b\n\nc', 3)).toBe('a …')
})

it('has one of a thing and many of it', () => {
  expect([0, 1, 2].map((n) => t('n_turns', { n }))).toEqual(['0 turns', '1 turn', '2 turns'])
  expect(t('n_tokens', { n: integer(1) })).toBe('1 token')
  expect(t('n_tokens', { n: integer(1001) })).toBe('1,001 tokens')
  expect(t('same_before', { n: '1' })).toBe('1 equal token before it is left out')
  expect(t('timeline_n', { n: 1, all: 2, agent: 'a', tokens: '1', trained: '0' })).toBe('1 of 2 · a · 1 token, 0 trained')
})

it('searches in what the server searches in', () => {
  const call = { id: 'c1', type: 'function', function: { name: 'add', arguments: '{"a": "x"}' } }
  const message = { reasoning: 'Hm.', content: '', tool_calls: [call as Json], searched: 'add({"a": "x"})' } as Message
  expect(searchedText(message)).toBe('Hm.\nadd({"a": "x"})')
  expect(searchedText({ ...message, content: 'hi', searched: null })).toBe('Hm.\nhi')
})

it('has each name in braces in both languages', () => {
  const names = (text: string): string[] => [...text.matchAll(/\{\w+\}/g)].map(([name]) => name).sort()
  for (const [word, [english, chinese]] of Object.entries(WORDS)) expect(names(chinese), word).toEqual(names(english))
})
