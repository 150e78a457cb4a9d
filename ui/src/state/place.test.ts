import { expect, it } from 'vitest'

import { filterOf, fromHash, sessionFilterOf, START, toHash } from './place'

it('is the same again from its address', () => {
  const place = { ...START, view: 'episodes' as const, run: 'a b/2026', over: ['x', 'y&z'], log: ['loss'], id: 'train-1-工-0-1', face: 'tokens' as const, node: 3, text: 'a=b&c', step: '0', colour: 'gap' as const }
  expect(fromHash(toHash(place))).toEqual(place)
  expect(fromHash(toHash({ ...START, run: '' })).run).toBe('')
  expect(fromHash('')).toEqual(START)
})

it('opens the list of episodes where an episode or a filter is named, and else the overview', () => {
  expect(fromHash('#run=a').view).toBe('overview')
  expect(fromHash('#run=a&id=x').view).toBe('episodes')
  expect(fromHash('#run=a&step=2').view).toBe('episodes')
  for (const view of ['overview', 'episodes', 'dashboard'] as const) {
    for (const id of ['', 'x']) expect(fromHash(toHash({ ...START, view, id }))).toEqual({ ...START, view, id })
  }
})

it('leaves out what it does not understand', () => {
  expect(fromHash('#face=evil&node=x&colour=&axis=&unknown=1')).toEqual(START)
  expect(fromHash('#timeline=-1&with_timeline=-2&node=-1&token=-9')).toEqual(START)
})

it('knows what restricts the list', () => {
  expect(filterOf({ ...START, text: 'x', sort: 'reward' })).toMatchObject({ text: 'x', sort: 'reward', split: '' })
})

it('asks for sessions of whole days', () => {
  const { since, until } = sessionFilterOf({ ...START, since: '2026-11-25', until: '2026-11-25' })
  expect(Number(until) - Number(since)).toBe(86_400)
  expect(sessionFilterOf({ ...START, since: 'soon' }).since).toBe('')
})
