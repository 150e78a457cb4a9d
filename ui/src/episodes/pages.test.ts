import { expect, it } from 'vitest'

import type { EpisodePage, EpisodeRow } from '../data/types'
import { PAGE, Pages } from './pages'

const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve))

/** A server of 1,000 episodes that writes down what it is asked for, and fails at the offsets in `broken`, a moment later. */
function served() {
  const [offsets, broken] = [[] as number[], new Set<number>()]
  const ask = async (offset: number, limit: number): Promise<EpisodePage> => {
    offsets.push(offset)
    if (broken.has(offset)) await settled().then(() => Promise.reject(new Error('broken')))
    return { total: 1000, rows: Array.from({ length: limit }, (_, at) => ({ seq: offset + at }) as EpisodeRow) }
  }
  return { offsets, broken, pages: new Pages('', ask, () => undefined) }
}

it('asks ahead for what is beside the window, after what is in it', async () => {
  const { offsets, pages } = served()
  pages.need(4 * PAGE, 4 * PAGE + 10)
  expect(offsets).toEqual([200])
  await settled()
  expect(offsets).toEqual([200, 150, 250])
  pages.need(5 * PAGE, 5 * PAGE + 10)
  await settled()
  expect(offsets).toEqual([200, 150, 250, 300])
})

it('asks once where the answer is an error', async () => {
  const { offsets, broken, pages } = served()
  broken.add(0)
  pages.need(0, 1)
  for (let time = 0; time < 5; time++) await settled()
  expect([offsets, pages.error?.message]).toEqual([[0], 'broken'])
})

it('keeps rows on show while what is beyond them fails, until they are needed themselves', async () => {
  const { broken, pages } = served()
  broken.add(100)
  pages.need(40, 52)
  await settled()
  await settled()
  expect([pages.row(45)?.seq, pages.error]).toEqual([45, null])
  pages.need(100, 112)
  await settled()
  await settled()
  expect(pages.error?.message).toBe('broken')
})

it('tells of a failure of what was asked for ahead and came into the window meanwhile', async () => {
  const { offsets, broken, pages } = served()
  broken.add(50)
  pages.need(0, 12)
  await settled()
  pages.need(50, 62)
  await settled()
  expect([offsets, pages.error?.message]).toEqual([[0, 50, 100], 'broken'])
})

it('asks ahead again once the window is renewed', async () => {
  const { offsets, pages } = served()
  pages.need(0, 12)
  await settled()
  pages.again()
  await settled()
  expect(offsets).toEqual([0, 50, 0, 50])
})
