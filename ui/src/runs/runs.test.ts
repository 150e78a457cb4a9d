import { expect, it } from 'vitest'

import type { EpisodeRow, RunInfo } from '../data/types'
import { matches, sorted } from '../data/embedded'
import { PAGE, pagesOf } from '../episodes/pages'
import { NO_FILTER } from '../state/place'
import { isOutside, runsMeant } from './runsMeant'

const RUNS = ['math/1', 'math/2', 'lake/1'].map((run) => ({ run, experiment: run.split('/')[0], name: run.split('/')[1], model: null }) as RunInfo)
const names = (wanted: string): string[] => runsMeant(RUNS, wanted, '/log/launcher_record').map(({ run }) => run)

it('takes a folder at any level, and otherwise a part of a name', () => {
  expect(names('')).toHaveLength(3)
  expect(names('/log/launcher_record')).toHaveLength(3)
  expect(names('launcher_record/math')).toEqual(['math/1', 'math/2'])
  expect(names('/log/launcher_record/math/2/rollout/')).toEqual(['math/2'])
  expect(names('LAK')).toEqual(['lake/1'])
  expect(names('/etc')).toEqual([])
  expect(names('/log/launcher_record_of_old/math')).toEqual([])
})

it('knows a path of another folder', () => {
  const outside = (wanted: string): boolean => isOutside(wanted, '/log/launcher_record')
  expect(['/etc', '~/runs', '/log/launcher_record_of_old/math'].map(outside)).toEqual([true, true, true])
  expect(['', 'math', '/', '/log/launcher_record', '/log/launcher_record/math'].map(outside)).toEqual([false, false, false, false, false])
})

it('filters and sorts a report as the server would', () => {
  const rows = [
    { seq: 1, task_id: 'Lake-1', reward: null, agents: ['a'], success: null, n_branches: 1 },
    { seq: 2, task_id: 'lake-2', reward: 0.5, agents: ['a', 'b'], success: false, n_branches: 3 },
    { seq: 3, task_id: 'math', reward: 1, agents: ['a'], success: true, n_branches: 1 },
  ] as EpisodeRow[]
  const left = (filter: object): number[] => rows.filter((row) => matches(row, { ...NO_FILTER, ...filter })).map(({ seq }) => seq)
  expect(left({ agent: 'b' })).toEqual([2])
  expect(left({ min_reward: '0.5' })).toEqual([2, 3])
  expect(left({ success: 'false' })).toEqual([2])
  expect(left({ min_branches: '2' })).toEqual([2])
  expect(left({ task: 'LAKE' })).toEqual([1, 2])
  const order = (filter: object): number[] => sorted(rows, { ...NO_FILTER, ...filter }).map(({ seq }) => seq)
  expect(order({ sort: 'reward' })).toEqual([2, 3, 1])
  expect(order({ sort: 'reward', order: 'desc' })).toEqual([3, 2, 1])
  expect(order({ sort: 'success' })).toEqual([2, 3, 1])
  expect(order({ sort: 'agent', order: 'desc' })).toEqual([1, 2, 3])
})

it('asks for the pages that a window touches', () => {
  expect(pagesOf(0, 1)).toEqual([0])
  expect(pagesOf(PAGE - 10, 2 * PAGE + 10)).toEqual([0, 1, 2])
  expect(pagesOf(PAGE, 2 * PAGE)).toEqual([1])
})
