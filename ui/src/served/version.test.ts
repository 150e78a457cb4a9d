import { expect, it } from 'vitest'

import { versionName } from './version'

it('calls a model in a folder by what tells it from others', () => {
  expect(versionName('1:/log/math/2026_11_25/checkpoints/step-000100/model')).toBe('1: math step-000100')
  expect(versionName('2:/models/tiny/')).toBe('2: tiny')
  expect(versionName('./models/tiny')).toBe('tiny')
  expect(['1:builtin:smollm2-135m', 'gpt-4o', 'org/name', ''].map(versionName)).toEqual(['1:builtin:smollm2-135m', 'gpt-4o', 'org/name', ''])
})
