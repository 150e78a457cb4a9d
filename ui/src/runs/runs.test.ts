import { expect, it } from 'vitest'

import type { EpisodeRow, RunInfo } from '../data/types'
import { matches, sorted } from '../data/embedded'
import { PAGE, pagesOf } from '../episodes/pages'
import { NO_FILTER } from '../state/place'
import { columns, differing, settingsShown, sortedRuns, distinctions } from './columns'
import { isOutside, runsMeant } from './runsMeant'

const NO_NOTES = { tags: ['old'], note: '', archived: false }
const RUNS = ['math/1', 'math/2', 'lake/1'].map((run) => ({ run, experiment: run.split('/')[0], name: run.split('/')[1], model: null, notes: NO_NOTES }) as unknown as RunInfo)
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

const measured = (run: string, best: number | null, settings: RunInfo['settings']) =>
  ({ run, experiment: run, name: run, model: null, notes: NO_NOTES, settings, held_out: best === null ? null : { first: 0, best, best_step: 2, last: 0, last_step: 4 } }) as unknown as RunInfo

it('sorts runs by a column, numbers as numbers, and what is not known last', () => {
  const runs = [measured('a', 0.5, { lr: '1e-5' }), measured('b', null, { lr: '2e-6' }), measured('c', 0.25, { lr: '5' })]
  const all = columns(['lr'])
  const order = (key: string, descending: boolean): string => sortedRuns(runs, all.find((column) => column.key === key), descending).map(({ run }) => run).join('')
  expect([order('held_out_best', true), order('held_out_best', false)]).toEqual(['acb', 'cab'])
  expect([order('lr', false), order('lr', true)]).toEqual(['bac', 'cab'])
  expect(order('no such column', true)).toBe('abc')
})

it('has columns for the settings in which the runs on show differ', () => {
  const runs = [measured('a', 0, { lr: '1', x: 'y' }), measured('b', 0, { lr: '2', x: 'y' }), measured('c', 0, null)]
  expect(differing(runs)).toEqual(['lr'])
  expect(settingsShown(['a', 'b', 'c', 'd', 'e'], null)).toEqual(['a', 'b', 'c', 'd'])
  expect(settingsShown(['a', 'b'], ['b'])).toEqual(['b'])
  expect(runsMeant(runs, 'LR=2', '/log').map(({ run }) => run)).toEqual(['b'])
})

it('tells runs of one experiment apart by what they differ in', () => {
  const run = (name: string, experiment: string, seed: number, settings: object): RunInfo => ({ run: name, experiment, seed, settings }) as unknown as RunInfo
  const labels = distinctions([
    run('a', 'sweep', 0, { 'trainer.optim.lr': '1e-5', 'model.path': 'tiny' }),
    run('b', 'sweep', 1, { 'trainer.optim.lr': '5e-5', 'model.path': 'tiny' }),
    run('c', 'alone', 0, { 'trainer.optim.lr': '1e-6' }),
  ])
  expect([...labels]).toEqual([
    ['a', 'lr 1e-5 · Seed 0'],
    ['b', 'lr 5e-5 · Seed 1'],
  ])
})

it('has the settings first in which runs of one experiment differ', () => {
  const run = (experiment: string, settings: object): RunInfo => ({ experiment, settings }) as unknown as RunInfo
  const runs = [run('sweep', { device: 'cpu', lr: '1' }), run('sweep', { device: 'cpu', lr: '2' }), run('other', { device: 'cuda', lr: '1' })]
  expect(differing(runs)).toEqual(['lr', 'device'])
})
