import { expect, it } from 'vitest'

import type { EpisodePage, EpisodeRow } from '../data/types'
import { Pages } from '../episodes/pages'
import { OneAtATime } from './one'

/** Questions that are answered when the test says so. */
function asked<T>() {
  const answers: ((value: T) => void)[] = []
  return { answers, ask: (): Promise<T> => new Promise((resolve) => answers.push(resolve)) }
}

const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve))
const page = (seq: number): EpisodePage => ({ total: seq, rows: [{ seq } as EpisodeRow] })

it('has one question under way, and one more behind it however often it is asked', async () => {
  const { answers, ask } = asked<void>()
  const one = new OneAtATime(ask)
  for (let time = 0; time < 5; time++) one.ask()
  expect(answers).toHaveLength(1)
  answers[0]!()
  await settled()
  expect(answers).toHaveLength(2)
  answers[1]!()
  await settled()
  expect(answers).toHaveLength(2)
  one.ask()
  expect(answers).toHaveLength(3)
})

it('never shows an older answer in place of a newer one', async () => {
  const { answers, ask } = asked<EpisodePage>()
  const pages = new Pages('', ask, () => undefined)
  pages.need(0, 1)
  pages.again()
  pages.again()
  expect(answers).toHaveLength(2)
  answers[1]!(page(2))
  await settled()
  answers[0]!(page(1))
  await settled()
  expect([pages.total, pages.row(0)?.seq]).toEqual([2, 2])
  answers[2]!(page(3))
  await settled()
  expect([pages.total, pages.row(0)?.seq]).toEqual([3, 3])
})
