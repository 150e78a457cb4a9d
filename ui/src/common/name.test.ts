import { expect, it } from 'vitest'

import { nameParts } from './Name'

it('keeps the end of a name whole', () => {
  expect(nameParts('appworld-train-000123-repeat')).toEqual(['appworld-train-0', '00123-repeat'])
  expect(nameParts('lake-7')).toEqual(['', 'lake-7'])
  expect(nameParts('🙂'.repeat(13))).toEqual(['🙂', '🙂'.repeat(12)])
})
